-- Read with cursors spread over a topic. Arguments: head seq, limit, and a node to filter by (or none).
-- The requests are made up front, so that the generator does nothing but send them.
local made = {}
local at = 0

function init(args)
  local head, limit, node = tonumber(args[1]), tonumber(args[2]), args[3]
  local filter = node and string.format(',"node":"%s"', node) or ""
  local span = math.max(head - limit, 1)
  wrk.method = "POST"
  wrk.headers["content-type"] = "application/json"
  math.randomseed(7)
  for i = 1, 4096 do
    local body = string.format('{"from_seq":%d,"limit":%d%s}', math.random(0, span), limit, filter)
    made[i] = wrk.format(nil, nil, nil, body)
  end
end

function request()
  at = at % #made + 1
  return made[at]
end
