import { createHash } from "node:crypto";
import {
  LOCK_LIMIT,
  MOST_WAITERS,
  RENEWALS_PER_TTL,
  REVOKED_KEPT,
  WAITERS_AT_EXPIRY,
  WAITERS_SHOWN,
} from "../../core/store.js";

/** Readers that are let in together by one script. */
const HANDOVERS_AT_ONCE = 100;

/** Raised when an older Holdfast could misread what is kept of a name. */
const FORMAT = 2;

/** Places of those who left stay empty, up to so many more than are taken. */
const EMPTY_PLACES = 64;

/** The longest ttl in a queue that an older Holdfast wrote, which does not record it. */
const UNKNOWN_TTL_MS = 2 ** 53;

/** The tickets of a name stay so much longer than they have to, so that their end is seldom moved. */
const QUEUE_KEPT_MS = 30_000;

/**
 * The rule of `../rule.ts` in the language of the server. Of each name there is
 *   …n:NAME  its front, packed: limit, holders, where its queue begins and ends. By far the most often
 *            one holds it and nobody waits: that has a form of its own, which ACTS writes and deletes
 *            in a few commands.
 *   …q:NAME  its queue, a hash: t<place> is a ticket, g<grantId> the place of that grantId's ticket.
 * Both go when nothing is left of them, and run out with the last lease or ticket otherwise.
 * Beside them, in the same slot, one counter of tokens for many names. Counters never expire, so that
 * tokens rise after the clock was set back; there are 256 of them at most.
 *
 * Times are in ms on the server's clock, numbers are doubles: tokens stay below 2^53 and leave as text.
 */
const PRELUDE = `
-- ARGV[1]: '0' in a cluster, where PUBLISH does not tell who was reached; otherwise '1' if the caller
-- listens to its channel, '2' if it does not listen yet.
local skipsDead, caller = ARGV[1] ~= '0', ARGV[2]
-- Where the caller's waiters are told. None: it asks again when it listens.
local wake = ARGV[1] == '2' and '' or caller
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = micros / 1000
local fronts, order, fresh, counters, handovers, absent = {}, {}, {}, {}, 0, {}

local function text(number) return string.format('%.0f', number) end

-- Redis 7 raises tables, older ones text.
local function problem(raised) return type(raised) == 'table' and raised.err or tostring(raised) end

local function packed(one)
  return cmsgpack.pack(
    one.id, one.permits, one.atLeast, one.holder, one.since, one.seq, one.ttl, one.expires, one.closed,
    one.token, one.floor, one.wake, one.place, one.ended, one.by, one.why
  )
end

local function unpacked(from)
  local id, permits, atLeast, holder, since, seq, ttl, expires, closed, token, floor, wake, place, ended,
    by, why = cmsgpack.unpack(from)
  return {
    id = id, permits = permits, atLeast = atLeast, holder = holder, since = since, seq = seq, ttl = ttl,
    expires = expires, closed = closed, token = token, floor = floor, wake = wake, place = place,
    ended = ended, by = by, why = why,
  }
end

-- As a claim comes.
local function asked(from)
  local seq, permits, limit, holder = string.match(from, '^(%d+) (%d+) (%d+) (.*)$')
  return tonumber(seq), tonumber(permits), tonumber(limit), holder
end

-- The form of one holder alone: ACTS keeps what it was given as the text that it was.
local function packedAlone(front, one)
  return cmsgpack.pack(
    ${FORMAT}, one.id, string.format('%.17g', one.atLeast), one.token, one.since * 1000, one.ttl,
    string.format('%.0f %.0f %.0f %s', one.seq, one.permits, front.limit, one.holder),
    one.expires, one.closed
  )
end

local function read(from)
  local ok, format, id, rest, token, since, ttl, claim, expires, closed =
    pcall(cmsgpack.unpack, from)
  -- Any text is numbers to cmsgpack.
  if not ok or type(format) ~= 'number' or (id and type(id) ~= 'string') then
    error('HOLDFAST STRANGER', 0)
  end
  if format ~= ${FORMAT} then error('HOLDFAST FORMAT ' .. tostring(format), 0) end
  if type(rest) == 'table' then
    for i, one in ipairs(rest.holders) do rest.holders[i] = unpacked(one) end
    rest.tickets = rest.tickets or rest.next - rest.first
    rest.longest = rest.longest or ${UNKNOWN_TTL_MS}
    return rest
  end
  if type(token) ~= 'number' then error('HOLDFAST STRANGER', 0) end
  local atLeast, seq, permits, limit, holder = tonumber(rest), asked(claim)
  since, ttl = since / 1000, tonumber(ttl)
  expires = expires or since + ttl
  closed = closed or (atLeast > 0 and since + atLeast or 0)
  return {
    limit = limit, first = 1, next = 1, tickets = 0, longest = 0, ends = math.max(expires, closed),
    kept = 0,
    holders = { {
      id = id, permits = permits, atLeast = atLeast, holder = holder, since = since, seq = seq,
      ttl = ttl, expires = expires, token = token, floor = token, closed = closed, ended = 'no',
    } },
  }
end

-- A batch may come to one name many times: it is read and written once.
local function open(at)
  local key = KEYS[at]
  local front = fronts[key]
  if front then return front end
  -- What is not ours must not fail the others of a batch.
  local there = redis.pcall('GET', key)
  if type(there) == 'string' then front = read(there)
  elseif there then error(there.err, 0)
  else
    front = {
      limit = 0, holders = {}, first = 1, next = 1, tickets = 0, longest = 0, ends = 0, kept = 0,
    }
  end
  -- More time is left than was ever given: the clock was set back since. What is left counts from now.
  for _, one in ipairs(front.holders) do
    if one.ended == 'released' then one.expires = math.min(one.expires, now)
    elseif one.expires > now + one.ttl + 1 then
      one.expires, front.touched = now + one.ttl, true
    end
    if one.closed > now + one.atLeast + 1 then
      one.closed, front.touched = now + one.atLeast, true
    end
  end
  front.key, front.queue, front.last, front.inUse = key, KEYS[at + 1], KEYS[at + 2], 0
  fronts[key] = front
  order[#order + 1] = front
  return front
end

local function ticketAt(front, place)
  local there = redis.call('HGET', front.queue, 't' .. text(place))
  return there and unpacked(there)
end

-- When memory is full, a script's first command must not be one that may take more. What is held must
-- not be lost for that: this one takes nothing.
local function insist(...)
  local done = redis.pcall(...)
  if type(done) == 'table' and done.err then
    redis.call('HDEL', order[1].queue, '-')
    redis.call(...)
  end
end

local function keepUntil(front, ms)
  if ms > front.ends then front.ends = ms end
end

local function saveTicket(front, one)
  keepUntil(front, one.expires)
  front.longest = math.max(front.longest, one.ttl)
  insist('HSET', front.queue, 't' .. text(one.place), packed(one), 'g' .. one.id, text(one.place))
  if one.expires > front.kept then
    front.kept = one.expires + ${QUEUE_KEPT_MS}
    redis.call('PEXPIREAT', front.queue, text(front.kept))
  end
  front.touched = true
end

local function dropTicket(front, one)
  redis.call('HDEL', front.queue, 't' .. text(one.place), 'g' .. one.id)
  front.tickets, front.touched = front.tickets - 1, true
end

-- Those who wait move up to the first, so that nobody has to walk over places that nobody is at.
local function closeUp(front)
  local to = front.first
  for place = front.first, front.next - 1 do
    local one = ticketAt(front, place)
    if one and one.expires <= now then dropTicket(front, one)
    elseif one then
      if place ~= to then
        redis.call('HDEL', front.queue, 't' .. text(place))
        one.place = to
        saveTicket(front, one)
      end
      to = to + 1
    end
  end
  front.next, front.touched = to, true
  front.room = 2 * (to - front.first) + ${EMPTY_PLACES}
end

local function enqueue(front, one)
  if front.first == front.next then
    -- What is left of a queue whose front has run out is over.
    redis.call('DEL', front.queue)
    front.first, front.next, front.tickets, front.kept, front.room = 1, 1, 0, 0, ${EMPTY_PLACES}
    front.longest = 0
  elseif front.next - front.first >= front.room then closeUp(front) end
  one.place = front.next
  front.next, front.tickets = front.next + 1, front.tickets + 1
  front.waiting = true
  saveTicket(front, one)
end

local function endsIn(one) return math.max(one.expires, one.closed) - now end

local function isOver(one) return one.expires <= now and one.closed <= now end

local function drawToken(front)
  local last = counters[front.last]
  if not last then
    last = redis.pcall('GET', front.last) or '0'
    if type(last) == 'table' then error(last.err, 0) end
    last = tonumber(last) or 0
  end
  local token = math.max(last + 1, micros)
  if token > 9007199254740991 then error('HOLDFAST LAST TOKEN', 0) end
  counters[front.last] = token
  return token
end

-- The grant keeps its ticket's expiry: it rests on the ask that was last heard of.
local function grant(front, one, token)
  one.token, one.floor = token, token
  for _, other in ipairs(front.holders) do
    -- They stand in the order of their tokens.
    if other.ended == 'no' and other.expires > now then
      one.floor = other.token
      break
    end
  end
  one.since = now
  -- After the clock was set back, a ticket may have more left than it was given.
  one.expires = math.min(one.expires, now + one.ttl)
  if one.atLeast > 0 then one.closed = now + one.atLeast end
  keepUntil(front, math.max(one.expires, one.closed))
  front.holders[#front.holders + 1] = one
  front.byId[one.id] = one
  front.inUse = front.inUse + one.permits
  front.touched, fresh[one] = true, true
end

-- The reply of this call tells it: no message has to, and nothing may take the grant back.
local function answer(one)
  one.answered = true
  return {
    token = text(one.token), floor = text(one.floor), ttlMs = one.ttl, seq = one.seq,
    handedOver = false,
  }
end

-- False: nobody at this server listens to the channel, so nobody there learns of a grant that this call
-- makes and takes back. It does not prove that the process is dead: its subscription may be away while
-- its commands work. So nobody is skipped that this call answers, nor that has yet to listen; the
-- caller lives, whatever its subscription does. And a subscriber at a replica hears what did not count
-- here: the message is a reason to ask, not a grant.
local function reaches(channel, message)
  if channel == '' then return true end
  -- Without the right to tell, it is found at the next renewal of the ticket.
  local reached = redis.pcall('PUBLISH', channel, message)
  if skipsDead and reached == 0 and channel ~= caller then absent[channel] = true end
  return not absent[channel]
end

-- Drops what has run out.
local function tidy(front)
  local holders, inUse, byId = {}, 0, {}
  for _, one in ipairs(front.holders) do
    if isOver(one) then front.touched = true
    else
      holders[#holders + 1] = one
      byId[one.id] = one
      if one.ended ~= 'revoked' then inUse = inUse + one.permits end
    end
  end
  front.holders, front.inUse, front.byId = holders, inUse, byId
end

local function remove(front, one)
  for i, other in ipairs(front.holders) do
    if other == one then
      table.remove(front.holders, i)
      break
    end
  end
  front.byId[one.id] = nil
  front.inUse = front.inUse - one.permits
  front.touched = true
end

-- Grants from the front of the queue while it fits: not too many in one script, which keeps everybody
-- else waiting. Who is next then is told to look, and that goes on.
local function advance(front, thorough)
  while front.first < front.next and (thorough or front.inUse < front.limit) do
    local one = ticketAt(front, front.first)
    if one and one.expires > now then
      local fits = front.inUse + one.permits <= front.limit
      local tooMany = handovers >= ${HANDOVERS_AT_ONCE}
      if fits and tooMany and front.looks ~= one.wake and not absent[one.wake] then
        reaches(one.wake, 'look')
        front.looks = one.wake
      end
      if absent[one.wake] then dropTicket(front, one)
      elseif tooMany or not fits then break
      else
        handovers = handovers + 1
        -- What can fail comes before what can't be undone.
        local token = drawToken(front)
        dropTicket(front, one)
        grant(front, one, token)
        front.untold = front.untold or {}
        table.insert(front.untold, one)
        if endsIn(one) < front.longest / ${RENEWALS_PER_TTL} then
          -- On to the first that waits, past the places of those who left.
          front.shorter, front.knows, thorough = front.shorter or {}, {}, true
          table.insert(front.shorter, one)
        end
      end
    elseif one then dropTicket(front, one) end
    front.first = front.first + 1
    front.touched = true
  end
  -- While it is full, it matters only to those who are told their place whether the first still live.
  front.waiting = front.first < front.next
  return front
end

local function advanced(at, thorough)
  local front = open(at)
  -- Time stands still in a script: once is enough, and whoever changes something advances it again.
  if not front.byId then
    tidy(front)
    advance(front, thorough)
  elseif thorough then advance(front, true) end
  return front
end

local function save(front)
  local one = front.holders[1]
  local queued = front.first < front.next
  front.touched = false
  if not one and not queued then
    redis.call('DEL', front.key)
    return
  end
  local written
  if not queued and #front.holders == 1 and one.ended == 'no' and one.floor == one.token then
    written, front.ends = packedAlone(front, one), math.max(one.expires, one.closed)
  else
    local holders = {}
    for i, each in ipairs(front.holders) do holders[i] = packed(each) end
    written = cmsgpack.pack(${FORMAT}, false, {
      limit = front.limit, holders = holders, first = front.first, next = front.next,
      tickets = front.tickets, longest = front.longest, ends = front.ends, kept = front.kept,
      room = front.room,
    })
  end
  insist('SET', front.key, written, 'PXAT', text(math.ceil(front.ends)))
end

local function saveTokens()
  for key, token in pairs(counters) do
    insist('SET', key, text(token))
    counters[key] = nil
  end
end

-- The first waiters ask when the holder's lease ends, as the last answer told them. They learn of a new
-- holder when they renew their tickets, which is too late if its lease ends before that.
local function lookIfEndsSooner(front)
  local sooner
  for _, one in ipairs(front.shorter or {}) do
    -- It may have been passed over, or given back by another act of the same batch.
    local isHeld = front.byId[one.id] == one and one.ended == 'no'
    if isHeld and (not sooner or endsIn(one) < sooner) then sooner = endsIn(one) end
  end
  if not sooner then return end
  local waiting = 0
  for place = front.first, math.min(front.next - 1, front.first + ${EMPTY_PLACES}) do
    local one = ticketAt(front, place)
    if one and one.expires > now then
      if one.ttl / ${RENEWALS_PER_TTL} > sooner and not front.knows[one.id] then
        reaches(one.wake, 'look ' .. one.id)
      end
      waiting = waiting + 1
      if waiting == ${WAITERS_AT_EXPIRY} then return end
    end
  end
end

-- Nobody is told that it holds before that is written.
local function close()
  saveTokens()
  for _, front in ipairs(order) do
    while front.touched do
      save(front)
      local untold = front.untold or {}
      front.untold = nil
      local missing = false
      for _, one in ipairs(untold) do
        -- It may have been revoked, or given back, by another act of the same batch.
        local isHeld = front.byId[one.id] == one and one.ended == 'no'
        if isHeld and not one.answered and not reaches(one.wake, one.id) then
          remove(front, one)
          missing = true
        end
      end
      if missing then
        advance(front)
        saveTokens()
      end
    end
    lookIfEndsSooner(front)
  end
end

-- The one that has not ended: what has ended is another grant, also of the same grantId.
local function find(front, id)
  local one = front.byId[id]
  if one and one.ended == 'no' then return one end
  if not front.waiting then return nil end
  local place = redis.call('HGET', front.queue, 'g' .. id)
  return place and ticketAt(front, tonumber(place))
end

-- Its grant was revoked, or has ended and only closes the name: it gets no other.
local function hasEnded(front, id)
  local one = front.byId[id]
  return one and (one.ended ~= 'no' or one.expires <= now)
end

-- Unless it was overtaken on the way by a later ask, which may have asked for less.
local function extend(front, one, seq, ttl)
  one.wake = wake
  if seq < one.seq then return end
  one.seq, one.ttl, one.expires = seq, ttl, now + ttl
  if one.token == 0 then saveTicket(front, one)
  else
    keepUntil(front, one.expires)
    front.touched = true
  end
end

local function limitOf(front)
  for _, one in ipairs(front.holders) do
    if one.ended ~= 'revoked' then return front.limit end
  end
  return front.waiting and front.limit
end

local function position(front, place)
  local freeIn, holder, ahead = nil, nil, 0
  for _, one in ipairs(front.holders) do
    if one.ended ~= 'revoked' then
      holder = holder or one.holder
      if not freeIn or endsIn(one) < freeIn then freeIn = endsIn(one) end
    end
  end
  if front.waiting then ahead = math.max(0, place - front.first) end
  return { ahead = ahead, freeInMs = freeIn, holder = holder }
end

local function queued(front, one)
  -- The answer tells what it would learn by looking.
  if front.knows then front.knows[one.id] = true end
  return { kind = 'queued', position = position(front, one.place) }
end

local function lost(front, id)
  local revoked, taken
  for _, one in ipairs(front.holders) do
    if one.id == id and one.ended == 'revoked' then revoked = one end
    if one.id ~= id and one.ended == 'no' then taken = true end
  end
  if revoked then
    return { kind = 'lost', reason = 'revoked', why = 'by ' .. revoked.by .. ': ' .. revoked.why }
  end
  return { kind = 'lost', reason = taken and 'superseded' or 'expired' }
end
`;

/**
 * Claims and releases of one turn of the event loop, each by itself, in their order. The first part
 * serves claims of names that are free, and releases of names that one holds and nobody waits for.
 * The others follow in their order.
 */
const ACTS = `
local answers, left, later, micros = {}, nil, nil, nil
local a, at = 3, 1

-- One alone, the most usual, is read faster than a list.
local function answered(all) return all[2] and all or all[1] end

while a <= #ARGV do
  local what, key, id, done = ARGV[a], KEYS[at], ARGV[a + 1], nil
  local names, size = 1, 5
  if what == 'release' then
    size = 2
    if not (later and later[key]) then
      local there = redis.pcall('GET', key)
      local mine = cmsgpack.pack(${FORMAT}, id, '0')
      if type(there) == 'string' and string.sub(there, 1, #mine) == mine then
        redis.call('DEL', key)
        done = 'released'
      end
    end
  elseif what == 'unused' then size = 2
  elseif what == 'queue 1' or what == 'claim 1' then
    if not (later and later[key]) then
      if not micros then
        local time = redis.call('TIME')
        micros = time[1] * 1000000 + time[2]
      end
      local counter, atLeast, ttl = KEYS[at + 2], ARGV[a + 2], ARGV[a + 3]
      local last = redis.pcall('GET', counter) or '0'
      -- Not if the clock was set back, for instance.
      if type(last) == 'string' and (tonumber(last) or micros) < micros and micros < 9007199254740991 then
        local set = redis.pcall(
          'SET', key, cmsgpack.pack(${FORMAT}, id, atLeast, micros, micros, ttl, ARGV[a + 4]), 'NX',
          'PX', math.ceil(atLeast == '0' and ttl or math.max(atLeast, ttl)) + 1
        )
        if set and set.err then done = '!' .. set.err
        elseif set then
          done = string.format('%.0f', micros)
          redis.call('SET', counter, done)
          -- The next claim may share the counter.
          micros = micros + 1
        end
      end
    end
  else names = tonumber(string.sub(what, 7)) end
  answers[#answers + 1] = done or ''
  if not done then
    -- Those that follow on the same names are left, too: each name's acts stay in their order.
    left, later = left or {}, later or {}
    left[#left + 1] = { #answers, a, at, names }
    for n = 0, names - 1 do later[KEYS[at + 3 * n]] = true end
  end
  a, at = a + size, at + 3 * names
end
if not left then return answered(answers) end
${PRELUDE}
local function claim(a, at, names)
  local id, atLeast, ttl = ARGV[a + 1], tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local seq, permits, limit, holder = asked(ARGV[a + 4])
  local queue = string.sub(ARGV[a], 1, 5) == 'queue'

  local function fits(front)
    return not front.waiting and front.inUse + permits <= limit
  end

  local own = {}
  for n = 1, names do
    local front = advanced(at + 3 * (n - 1), true)
    local mine = find(front, id)
    if hasEnded(front, id) then return lost(front, id) end
    if not mine then
      local other = limitOf(front)
      if other and other ~= limit then return { kind = 'mismatch', at = n - 1, limit = other } end
      if not queue and not fits(front) then
        return { kind = 'busy', at = n - 1, position = position(front, front.next) }
      end
      if queue and not fits(front) and front.waiting and front.tickets >= ${MOST_WAITERS} then
        return { kind = 'full', at = n - 1, waiting = front.tickets }
      end
    end
    own[n] = mine
  end

  -- Nothing was claimed so far: all names or none.
  local grants = {}
  for n = 1, names do
    local front, mine = fronts[KEYS[at + 3 * (n - 1)]], own[n]
    if mine then extend(front, mine, seq, ttl)
    else
      mine = {
        id = id, permits = permits, atLeast = atLeast, holder = holder, since = now, seq = seq,
        ttl = ttl, expires = now + ttl, token = 0, floor = 0, closed = 0, ended = 'no', wake = wake,
      }
      front.limit = limit
      if fits(front) then grant(front, mine, drawToken(front)) else enqueue(front, mine) end
    end
    -- Several names never leave a ticket.
    if mine.token == 0 then return queued(front, mine) end
    grants[#grants + 1] = answer(mine)
  end
  return { kind = 'granted', grants = grants }
end

local function release(a, at)
  local id, unused = ARGV[a + 1], ARGV[a] == 'unused'
  local front = advanced(at)
  local mine = find(front, id)
  -- Those in front that have run out go first, and it may be one of them.
  if mine and mine.token == 0 then mine = find(advance(front, true), id) end
  if not mine then return lost(front, id) end
  if mine.token == 0 then dropTicket(front, mine)
  elseif mine.closed > now and not unused then
    mine.ended, mine.expires, front.touched = 'released', now, true
  else remove(front, mine) end
  advance(front)
  return 'released'
end

for _, one in ipairs(left) do
  local place, a, at, names = unpack(one)
  local act = (ARGV[a] == 'release' or ARGV[a] == 'unused') and release or claim
  -- What is wrong with one of them is not the others' affair.
  local ok, told = pcall(act, a, at, names)
  if not ok then answers[place] = '!' .. problem(told)
  else answers[place] = told == 'released' and told or cjson.encode(told) end
end
close()
return answered(answers)
`;

const RENEW = `
local answers = {}
local function renew(at, id, seq, ttl)
  local front = advanced(at, true)
  local mine = find(front, id)
  if not mine or mine.expires <= now then return lost(front, id) end
  extend(front, mine, seq, ttl)
  if mine.token > 0 then return { kind = 'granted', grant = answer(mine) } end
  return queued(front, mine)
end

for i = 1, #KEYS / 3 do
  local id, seq, ttl = ARGV[3 * i], tonumber(ARGV[3 * i + 1]), tonumber(ARGV[3 * i + 2])
  local ok, told = pcall(renew, 3 * i - 2, id, seq, ttl)
  answers[i] = ok and told or { kind = 'unknown', cause = problem(told) }
end
close()
return cjson.encode(answers)
`;

const HOLDER = `
local function holderInfo(front, one)
  local closed = one.ended == 'released' or one.expires <= now
  return {
    holder = one.holder, permits = one.permits, limit = front.limit, token = text(one.token),
    heldMs = now - one.since, expiresInMs = closed and endsIn(one) or one.expires - now,
    closed = closed,
  }
end
`;

const REVOKE = `
${HOLDER}
local by, why, keptMs, keptMany = ARGV[3], ARGV[4], ${REVOKED_KEPT.ms}, ${REVOKED_KEPT.many}
local front = advanced(1)
local infos, revoked, others = {}, {}, {}
for _, one in ipairs(front.holders) do
  -- It is taken from those who held it, not from who comes after them by this very step.
  if one.ended ~= 'revoked' and not fresh[one] then
    infos[#infos + 1] = holderInfo(front, one)
    -- Stays beyond its lease, so that its renewal learns why it is gone, and people see it.
    one.ttl = math.max(one.expires - now, keptMs)
    one.expires = now + one.ttl
    one.ended, one.by, one.why, one.since, one.closed = 'revoked', by, why, now, 0
    keepUntil(front, one.expires)
    front.touched = true
  end
  if one.ended == 'revoked' then revoked[#revoked + 1] = one else others[#others + 1] = one end
end
table.sort(revoked, function (a, b)
  if a.since ~= b.since then return a.since < b.since end
  return a.token < b.token
end)
-- Not one of this step: its holder has yet to learn of it.
while #revoked > keptMany and revoked[1].since < now do table.remove(revoked, 1) end
for _, one in ipairs(others) do revoked[#revoked + 1] = one end
front.holders = revoked
tidy(front)
advance(front)
close()
return cjson.encode(infos)
`;

const RESIZE = `
local limit = tonumber(ARGV[3])
local front = advanced(1)
local before = limitOf(front)
if before and before ~= ${LOCK_LIMIT} and before ~= limit then
  front.limit, front.touched = limit, true
  for place = front.first, front.next - 1 do
    local one = ticketAt(front, place)
    if one and one.permits > limit then dropTicket(front, one) end
  end
  advance(front)
end
close()
return before and text(before) or ''
`;

/** Changes nothing. Answers for the first name, and for as many of the others as are soon read. */
const INSPECT = `
${HOLDER}
local shown = 0

local function infoOf(at)
  local front = open(at)
  local info = { limit = front.limit, holders = {}, waiters = {}, revoked = {} }
  for _, one in ipairs(front.holders) do
    if not isOver(one) then
      if one.ended == 'revoked' then
        info.revoked[#info.revoked + 1] = {
          holder = one.holder, token = text(one.token), by = one.by, why = one.why,
          agoMs = now - one.since,
        }
      else info.holders[#info.holders + 1] = holderInfo(front, one) end
    end
  end
  local place, over = front.first, 0
  while place < front.next and #info.waiters < ${WAITERS_SHOWN} do
    local one = ticketAt(front, place)
    if one and one.expires > now then
      info.waiters[#info.waiters + 1] = {
        holder = one.holder, permits = one.permits, limit = front.limit,
        waitingMs = now - one.since, expiresInMs = one.expires - now,
      }
    elseif one then over = over + 1 end
    place = place + 1
  end
  info.waiting = place == front.next and #info.waiters or front.tickets - over
  shown = shown + #info.waiters
  return info
end

local answers = {}
for i = 1, #KEYS / 3 do
  if shown >= ${WAITERS_SHOWN} then break end
  local ok, info = pcall(infoOf, 3 * i - 2)
  answers[i] = ok and info or { problem = problem(info) }
end
return cjson.encode(answers)
`;

export interface Script {
  readonly name: string;
  readonly code: string;
  readonly sha: string;
}

function script(name: string, code: string): Script {
  return { name, code, sha: createHash("sha1").update(code).digest("hex") };
}

/** A page of the keys that match, as SCAN answers. */
const SCAN = "return redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])";

/** Changes nothing, and is refused wherever locks would be: a replica refuses every command that writes. */
const PROBE = "redis.call('TIME') return redis.call('DEL', KEYS[1])";

export const SCRIPTS = {
  acts: script("acts", ACTS),
  renewals: script("renewals", `${PRELUDE}${RENEW}`),
  revoke: script("revoke", `${PRELUDE}${REVOKE}`),
  resize: script("resize", `${PRELUDE}${RESIZE}`),
  inspect: script("inspect", `${PRELUDE}${INSPECT}`),
  scan: script("scan", SCAN),
  probe: script("probe", PROBE),
};

const selecting = new Map<string, Script>();

/**
 * The same script, which works in one database whatever the connection is in, or fails. A client's own
 * SELECT proves nothing: ioredis goes on in database 0 when it was refused, and node-redis sends what
 * waited for a connection right behind it. What a script selects ends with the script.
 */
export function selectingScript({ name, code, sha }: Script, db: number): Script {
  const key = `${db} ${sha}`;
  const one = selecting.get(key) ?? script(name, `redis.call('SELECT', '${db}')\n${code}`);
  selecting.set(key, one);
  return one;
}
