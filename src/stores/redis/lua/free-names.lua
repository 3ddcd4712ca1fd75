-- The first part of the script for the claims and releases of one turn of the event loop. It serves the
-- usual requests with as few commands as possible: a claim of a free name, and the release of a name that
-- one claim holds and nobody waits for. requests.lua serves the others, in their order.
--
-- ARGV[1] describes the caller (see names.lua). Each request is two arguments, its grantId and one of
--   'release', or 'unused' (atLeast does not close the name)
--   'claim N atLeast ttl details', or 'queue N atLeast ttl details' (leaves a ticket), for N names;
--       the details are 'seq permits limit holder'
-- KEYS has the state, the queue and the token counter of each name.
local replies, postponed, postponedNames = {}, nil, nil
local arg, key = 2, 1

while arg <= #ARGV do
  local id, request, stateKey, nameCount, reply = ARGV[arg], ARGV[arg + 1], KEYS[key], 1, nil
  local mayServe = not (postponedNames and postponedNames[stateKey])
  if request == 'release' then
    if mayServe then
      local stored = redis.pcall('GET', stateKey)
      local own = cmsgpack.pack(FORMAT, id, '0')
      if type(stored) == 'string' and string.sub(stored, 1, #own) == own then
        redis.call('DEL', stateKey)
        reply = 'released'
      end
    end
  elseif request ~= 'unused' then
    local names, atLeast, ttl, details = string.match(request, '^%a+ (%d+) (%S+) (%S+) (.*)$')
    nameCount = tonumber(names)
    if mayServe and nameCount == 1 then
      if not micros then
        local time = redis.call('TIME')
        micros = time[1] * 1000000 + time[2]
      end
      local counterKey = KEYS[key + 2]
      local last = redis.pcall('GET', counterKey) or '0'
      -- A counter ahead of the clock (which was set back, for instance) needs the general rule.
      if type(last) == 'string' and (tonumber(last) or micros) < micros and micros <= MAX_TOKEN then
        local set = redis.pcall(
          'SET', stateKey, cmsgpack.pack(FORMAT, id, atLeast, micros, micros, ttl, details),
          'NX', 'PX', math.ceil(atLeast == '0' and ttl or math.max(atLeast, ttl)) + 1
        )
        if set and set.err then reply = '!' .. set.err
        elseif set then
          reply = string.format('%.0f', micros)
          redis.call('SET', counterKey, reply)
          -- The next claim of this script may draw from the same counter.
          micros = micros + 1
        end
      end
    end
  end
  replies[#replies + 1] = reply or ''
  if not reply then
    -- Later requests on the same names are postponed too, so that each name's requests keep their order.
    postponed, postponedNames = postponed or {}, postponedNames or {}
    postponed[#postponed + 1] = { #replies, arg, key, nameCount }
    for n = 0, nameCount - 1 do postponedNames[KEYS[key + 3 * n]] = true end
  end
  arg, key = arg + 2, key + 3 * nameCount
end

-- A client reads a single text faster than a list.
if not postponed then return replies[2] and replies or replies[1] end
