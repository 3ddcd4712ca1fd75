-- The requests of one turn of the event loop. The first three arguments describe the caller: the marker that it
-- knows, empty unless the node was in service; its maxTtl in ms; 'fsync channel' (see marker.lua). Each further
-- argument is a request, with two keys, the record of a name and its counter:
--   '+register px BODY': a usual claim, whose atLeast is 0 (register: 0 never, 1 if busy; px: the ms for which the
--     key of the record is kept); BODY is 'number ID atLeast ttl seq holder', with which its record begins
--   '*register px BODY': any claim (register: also 2, always)
--   '-next number ID 0 ': a usual release of a grant with this number (next: one more)
--   '~number ID unused wakes keptOut': any release (number: of the grant, or -1; unused: 1 if atLeast does not
--     close the name; wakes: 1 if a waiting process is notified; keptOut: the ms for which the ballot's claim is
--     refused if it arrives later)
--   'raise ID number'
--   'pass' (the caller was woken and does not want the name)
-- where ID names a ballot.
--
-- This part serves the usual requests with as little work as possible, before the functions of the other parts are
-- made: a claim of a free name on a node in service that takes the proposed number, and a release of a record.
local FIRST = 3
local replies, served = {}, 0
-- A server that has restarted may find the known marker again in old data, but it no longer knows the script. The
-- caller that loads it knows no marker, and has the node examined whatever it asks for: from then on, callers that
-- know a marker are believed.
local usuals = ARGV[1] == '' and 0 or #ARGV - FIRST

for i = 1, usuals do
  local request, recordKey, counterKey, reply = ARGV[i + FIRST], KEYS[2 * i - 1], KEYS[2 * i], nil
  local kind = string.byte(request)
  if kind == 43 then
    readTime()
    local px, from, number = string.match(request, '^%+%d (%d+) ()(%d+)')
    local stored = redis.call('MGET', prefix .. 'marker', counterKey)
    local last = stored[2]
    local highest, proposed = tonumber(last), tonumber(number)
    if stored[1] == ARGV[1] and highest and proposed > highest and isPlausible(proposed) then
      local record = string.sub(request, from) .. '\n' .. last .. ' ' .. moment
      local set = redis.pcall('SET', recordKey, record, 'NX', 'PX', px)
      if set and set.ok then
        redis.call('SET', counterKey, number)
        reply = '+' .. moment
      end
    end
  elseif kind == 45 then
    local next, from, number = string.match(request, '^%-(%d+) ()(%d+)')
    local own, stored = string.sub(request, from), redis.call('MGET', recordKey, counterKey, (waitingOf(recordKey)))
    local record, last = stored[1], stored[2]
    if record and string.sub(record, 1, #own) == own
      and (last == number or (tonumber(last) or 0) > tonumber(number)) then
      redis.call('DEL', recordKey)
      -- A renewal of the grant that arrives later must not fill it in again.
      if last == number then redis.call('SET', counterKey, next) end
      reply = stored[3] and wakeNext(recordKey) and 'awaited' or 'released'
    end
  end
  if not reply then break end
  replies[i], served = reply, i
end

-- A client reads a single text faster than a list.
if served == #ARGV - FIRST then return replies[2] and replies or replies[1] end
