-- Append one record to each of many topics in turn: t0, t1, ... Argument 1: how many topics.
local made = {}
local at = 0

function init(args)
  wrk.method = "POST"
  wrk.headers["content-type"] = "application/json"
  wrk.body = '{"records":[{"data":{"sku":"AEROPRESS-GO","qty":1,"total":3499},"tag":"order-7731"}]}'
  for i = 1, tonumber(args[1]) do
    made[i] = wrk.format(nil, "/v0/topics/t" .. (i - 1))
  end
end

function request()
  at = at % #made + 1
  return made[at]
end
