-- Describes names and changes nothing. The reply has the first name, and the others until WAITERS_SHOWN
-- waiters are described: the script stays short, and the client asks for the rest again.
local shown = 0

local function describe(key)
  local state = openState(key)
  local info = { limit = state.limit, holders = {}, waiters = {}, revoked = {} }
  for _, holder in ipairs(state.holders) do
    if not isOver(holder) then
      if holder.ended == 'revoked' then
        info.revoked[#info.revoked + 1] = {
          holder = holder.holder, token = toText(holder.token), by = holder.by, why = holder.why,
          agoMs = now - holder.since,
        }
      else info.holders[#info.holders + 1] = holderInfo(state, holder) end
    end
  end
  local place, expired = state.first, 0
  while place < state.next and #info.waiters < WAITERS_SHOWN do
    local ticket = ticketAt(state, place)
    if ticket and ticket.expires > now then
      info.waiters[#info.waiters + 1] = {
        holder = ticket.holder, permits = ticket.permits, limit = state.limit,
        waitingMs = now - ticket.since, expiresInMs = ticket.expires - now,
      }
    elseif ticket then expired = expired + 1 end
    place = place + 1
  end
  info.waiting = place == state.next and #info.waiters or state.tickets - expired
  shown = shown + #info.waiters
  return info
end

local replies = {}
for i = 1, #KEYS / 3 do
  if shown >= WAITERS_SHOWN then break end
  local ok, info = pcall(describe, 3 * i - 2)
  replies[i] = ok and info or { problem = messageOf(info) }
end
return cjson.encode(replies)
