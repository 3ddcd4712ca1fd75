-- Changes the limit of a semaphore in use. ARGV: the caller, the limit. Returns the limit before, or ''.
local limit = tonumber(ARGV[2])
local state = openAndAdvance(1)
local before = limitOf(state)
if before and before ~= LOCK_LIMIT and before ~= limit then
  state.limit, state.changed = limit, true
  for place = state.first, state.next - 1 do
    local ticket = ticketAt(state, place)
    if ticket and ticket.permits > limit then dropTicket(state, ticket) end
  end
  advance(state)
end
saveAndNotify()
return before and toText(before) or ''
