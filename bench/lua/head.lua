-- Read the last record of a topic. Argument 1: its head seq.
function init(args)
  wrk.method = "POST"
  wrk.headers["content-type"] = "application/json"
  wrk.body = string.format('{"from_seq":%d,"limit":1}', tonumber(args[1]) - 1)
  request_bytes = wrk.format()
end

function request()
  return request_bytes
end
