-- Describes names and changes nothing. Each name has two keys: the record, the revocations.
readTime()
local replies = {}
for i = 1, #KEYS / 2 do
  local ok, info = pcall(function ()
    local record = readRecord(KEYS[2 * i - 1])
    local info = { revoked = {} }
    if record then
      info.record = {
        id = shortId(record.id), number = string.format('%.0f', record.number), holder = record.holder,
        heldMs = (micros - record.since) / 1000, closed = record.expiry <= micros,
        expiresInMs = ((record.expiry > micros and record.expiry or record.closed) - micros) / 1000,
      }
    end
    for j, one in ipairs(readRevocations(KEYS[2 * i])) do
      info.revoked[j] = {
        id = one.id, holder = one.holder, token = one.token, by = one.by, why = one.why,
        agoMs = (micros - one.at) / 1000,
      }
    end
    return info
  end)
  replies[i] = ok and info or { problem = messageOf(info) }
end
return cjson.encode(replies)
