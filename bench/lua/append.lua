-- POST the same append again and again. Argument 1: records a request.
local record = '{"data":{"sku":"AEROPRESS-GO","qty":1,"total":3499},"tag":"order-7731"}'

function init(args)
  wrk.method = "POST"
  wrk.headers["content-type"] = "application/json"
  wrk.body = '{"records":[' .. string.rep(record, tonumber(args[1] or "1"), ",") .. "]}"
  request_bytes = wrk.format()
end

function request()
  return request_bytes
end
