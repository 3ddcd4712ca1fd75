import { createHash } from "node:crypto";
import { LOCK_LIMIT, REVOKED_KEPT } from "../../core/store.js";

/** Readers that are let in together by one script. */
const HANDOVERS_AT_ONCE = 100;

/** Raised when an older Holdfast could misread what is kept of a name. */
const FORMAT = 1;

/**
 * The rule of `../rule.ts` in the language of the server. A name that one holds and nobody waits
 * for is a packed text, by far the most usual case: the first part of ACTS serves it
 * alone, in a few commands. Otherwise it is a hash:
 *   front       its limit, its holders, and where its queue begins and ends
 *   t<place>    a ticket
 *   g<grantId>  the place of that ticket
 * It is deleted when nothing is left of it, and runs out with the last lease or ticket otherwise.
 * Beside it, in the same slot, one counter of tokens for many names, kept until the server's clock
 * has passed it by a minute: nothing is kept per name, and a clock that is set back repeats no token.
 *
 * Times are in ms on the server's clock, numbers are doubles: tokens stay below 2^53 and leave as text.
 */
const PRELUDE = `
-- The one server has all subscribers: whom a message does not reach is not there.
local skipsDead = ARGV[1] == '1'
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = micros / 1000
local fronts, order, fresh, counters, handovers = {}, {}, {}, {}, 0

local function text(number) return string.format('%.0f', number) end

-- As ACTS has packed it.
local function alone(packed)
  local ok, format, id, permits, limit, atLeast, holder, since, seq, ttl, expires, closed, token =
    pcall(cmsgpack.unpack, packed)
  if not ok or type(format) ~= 'number' then return nil, 'HOLDFAST STRANGER' end
  if format ~= ${FORMAT} then return nil, 'HOLDFAST FORMAT ' .. tostring(format) end
  if type(token) ~= 'number' then return nil, 'HOLDFAST STRANGER' end
  return {
    format = format, limit = limit, first = 1, next = 1, ends = math.max(expires, closed),
    holders = { {
      id = id, permits = permits, atLeast = atLeast, holder = holder, since = since, seq = seq,
      ttl = ttl, expires = expires, token = token, floor = token, closed = closed, ended = 'no',
    } },
  }
end

-- A batch may come to one name many times: it is read and written once.
local function open(key, last)
  local front = fronts[key]
  if front then return front end
  local packed = redis.pcall('GET', key)
  -- What is not ours must not fail the others of a batch.
  if type(packed) == 'string' then
    local problem
    front, problem = alone(packed)
    if not front then return nil, problem end
  elseif packed then
    packed = redis.pcall('HGET', key, 'front')
    if type(packed) ~= 'string' then return nil, packed and packed.err or 'HOLDFAST STRANGER' end
    local ok
    ok, front = pcall(cmsgpack.unpack, packed)
    if not ok or type(front) ~= 'table' or not front.format then return nil, 'HOLDFAST STRANGER' end
  else front = { format = ${FORMAT}, limit = 0, holders = {}, first = 1, next = 1, ends = 0 } end
  if front.format ~= ${FORMAT} then return nil, 'HOLDFAST FORMAT ' .. tostring(front.format) end
  -- Read now, so that nothing can fail after somebody was told that it holds.
  local counter = redis.pcall('GET', last)
  if type(counter) == 'table' then return nil, counter.err end
  counters[last] = math.max(counters[last] or 0, tonumber(counter or '0') or 0)
  if math.max(counters[last], micros) + 1e6 > 9007199254740991 then return nil, 'HOLDFAST LAST TOKEN' end
  front.key, front.last, front.inUse = key, last, 0
  fronts[key] = front
  order[#order + 1] = front
  return front
end

-- Of a packed text, too; but that is not dropped before it is known that this user may write a hash:
-- what a script has done before an error stays done.
local function makeHash(front, ...)
  local result = redis.pcall('HSET', front.key, ...)
  if type(result) ~= 'table' then return end
  if not string.find(result.err, 'WRONGTYPE', 1, true) then error(result.err) end
  redis.call('DEL', front.key)
  redis.call('HSET', front.key, ...)
end

local function close()
  for _, front in ipairs(order) do
    if front.touched then
      local one = front.holders[1]
      local queued = front.first < front.next
      if not one and not queued then redis.call('DEL', front.key)
      elseif not queued and #front.holders == 1 and one.ended == 'no' and one.floor == one.token then
        redis.call('SET', front.key, cmsgpack.pack(
          ${FORMAT}, one.id, one.permits, front.limit, one.atLeast, one.holder, one.since, one.seq,
          one.ttl, one.expires, one.closed, one.token
        ), 'PXAT', text(math.ceil(math.max(one.expires, one.closed))))
      else
        makeHash(front, 'front', cmsgpack.pack({
          format = ${FORMAT}, limit = front.limit, holders = front.holders, first = front.first, next = front.next,
          ends = front.ends,
        }))
        redis.call('PEXPIREAT', front.key, text(math.ceil(front.ends)))
      end
    end
  end
end

local function ticketAt(front, place)
  local packed = redis.call('HGET', front.key, 't' .. text(place))
  return packed and cmsgpack.unpack(packed)
end

local function keepUntil(front, ms)
  if ms > front.ends then front.ends = ms end
end

local function saveTicket(front, one)
  keepUntil(front, one.expires)
  makeHash(front, 't' .. text(one.place), cmsgpack.pack(one), 'g' .. one.id, text(one.place))
  front.touched = true
end

local function dropTicket(front, one)
  redis.call('HDEL', front.key, 't' .. text(one.place), 'g' .. one.id)
  front.touched = true
end

local function isOver(one) return one.expires <= now and one.closed <= now end

local function drawToken(front)
  local token = math.max(counters[front.last] + 1, micros)
  counters[front.last] = token
  redis.call('SET', front.last, text(token), 'PXAT', text(math.ceil(token / 1000) + 60000))
  return token
end

-- The grant keeps its ticket's expiry: it rests on the ask that was last heard of.
local function grant(front, one)
  one.token = drawToken(front)
  one.floor = one.token
  for _, other in ipairs(front.holders) do
    -- They stand in the order of their tokens.
    if other.ended == 'no' and other.expires > now then
      one.floor = other.token
      break
    end
  end
  one.since = now
  if one.atLeast > 0 then one.closed = now + one.atLeast end
  keepUntil(front, math.max(one.expires, one.closed))
  front.holders[#front.holders + 1] = one
  front.byId[one.id] = one
  front.inUse = front.inUse + one.permits
  front.touched, fresh[one] = true, true
end

local function grantOf(one, handedOver)
  return {
    token = text(one.token), floor = text(one.floor), ttlMs = one.ttl, seq = one.seq,
    handedOver = handedOver,
  }
end

-- False: its process is not there to hear it.
local function tell(one)
  local message = cjson.encode({ grantId = one.id, grant = grantOf(one, true) })
  -- Without the right to tell, it is found at the next renewal of the ticket.
  local reached = redis.pcall('PUBLISH', one.wake, message)
  return type(reached) == 'table' or reached > 0 or not skipsDead
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

-- Grants from the front of the queue while it fits: not too many in one script, which keeps everybody
-- else waiting. Who is next then is told to look, and that goes on.
local function advance(front)
  front.waiting = nil
  while front.first < front.next do
    local one = ticketAt(front, front.first)
    if one and one.expires > now then
      local tooMany = handovers >= ${HANDOVERS_AT_ONCE}
      if tooMany or front.inUse + one.permits > front.limit then
        front.waiting = one
        if tooMany then redis.pcall('PUBLISH', one.wake, 'look') end
        break
      end
      handovers = handovers + 1
      dropTicket(front, one)
      grant(front, one)
      if not tell(one) then
        table.remove(front.holders)
        front.byId[one.id] = nil
        front.inUse = front.inUse - one.permits
      end
    elseif one then dropTicket(front, one) end
    front.first = front.first + 1
    front.touched = true
  end
  return front
end

local function advanced(key, last)
  local front, problem = open(key, last)
  -- Time stands still in a script: once is enough, and whoever changes something advances it again.
  if front and not front.byId then
    tidy(front)
    advance(front)
  end
  return front, problem
end

-- Where there is only one name, what is wrong with it is the answer.
local function only(front, problem)
  if not front then
    close()
    error(problem)
  end
  return front
end

-- The one that has not ended: what has ended is another grant, also of the same grantId.
local function find(front, id)
  local one = front.byId[id]
  if one and one.ended == 'no' then return one end
  if not front.waiting then return nil end
  local place = redis.call('HGET', front.key, 'g' .. id)
  return place and ticketAt(front, tonumber(place))
end

-- Its grant was revoked, or has ended and only closes the name: it gets no other.
local function hasEnded(front, id)
  local one = front.byId[id]
  return one and (one.ended ~= 'no' or one.expires <= now)
end

-- Unless it was overtaken on the way by a later ask, which may have asked for less.
local function extend(front, one, seq, ttl)
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

local function endsIn(one) return math.max(one.expires, one.closed) - now end

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
`;

/**
 * Claims and releases of one turn of the event loop, each by itself, in their order. The first part
 * serves claims of names that are free, and releases of names that one holds and nobody waits for.
 * The others follow in their order. A token that is drawn in vain does no harm.
 */
const ACTS = `
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local answers, left, later = {}, {}, {}
local a, at = 1, 0
while a < #ARGV do
  local count, done = tonumber(ARGV[a + 1]), nil
  local key, last = KEYS[at + 1], KEYS[at + 2]
  if later[key] then
    -- After one that was left: each name's acts stay in their order.
  elseif count == 0 then
    local packed = redis.pcall('GET', key)
    if type(packed) == 'string' then
      local ok, format, id, permits, limit, atLeast = pcall(cmsgpack.unpack, packed)
      if ok and format == ${FORMAT} and id == ARGV[a + 2] and atLeast == 0 then
        redis.call('DEL', key)
        done = 'released'
      end
    end
  elseif count == 1 then
    local now, ttl, atLeast = micros / 1000, tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7])
    local before = redis.pcall('GET', last)
    before = type(before) == 'table' and math.huge or tonumber(before or '0') or math.huge
    local token = before < micros and micros or before + 1
    local expires, closed = now + ttl, atLeast > 0 and now + atLeast or 0
    local packed = cmsgpack.pack(
      ${FORMAT}, ARGV[a + 2], tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]), atLeast, ARGV[a + 8],
      now, tonumber(ARGV[a + 3]), ttl, expires, closed, token
    )
    local ends = string.format('%.0f', math.ceil(math.max(expires, closed)))
    if token < 9007199254740991 and redis.call('SET', key, packed, 'NX', 'PXAT', ends) then
      done = string.format('%.0f', token)
      redis.call('SET', last, done, 'PXAT', string.format('%.0f', math.ceil(token / 1000) + 60000))
    end
  end
  answers[#answers + 1] = done or ''
  if not done then
    left[#left + 1] = { #answers, a + 1, at, count }
    for n = 1, math.max(count, 1) do later[KEYS[at + 2 * n - 1]] = true end
  end
  a = a + (count == 0 and 3 or 9)
  at = at + (count == 0 and 2 or 2 * count)
end
if #left == 0 then return answers end
${PRELUDE}
local function claim(a, at, count)
  local id, holder, wake = ARGV[a + 1], ARGV[a + 7], ARGV[a + 8]
  local seq, permits, limit = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local ttl, atLeast = tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6])
  local queue = wake ~= ''

  local function fits(front)
    return not front.waiting and front.inUse + permits <= limit
  end

  local own = {}
  for n = 1, count do
    local front, problem = advanced(KEYS[at + 2 * n - 1], KEYS[at + 2 * n])
    if not front then return nil, problem end
    local mine = find(front, id)
    if hasEnded(front, id) then return lost(front, id) end
    if not mine then
      local other = limitOf(front)
      if other and other ~= limit then return { kind = 'mismatch', at = n - 1, limit = other } end
      if not queue and not fits(front) then
        return { kind = 'busy', at = n - 1, position = position(front, front.next) }
      end
    end
    own[n] = mine
  end

  -- Nothing was claimed so far: all names or none.
  local grants, queued = {}, nil
  for n = 1, count do
    local front, mine = fronts[KEYS[at + 2 * n - 1]], own[n]
    if mine then extend(front, mine, seq, ttl)
    else
      mine = {
        id = id, permits = permits, atLeast = atLeast, holder = holder, since = now, seq = seq,
        ttl = ttl, expires = now + ttl, token = 0, floor = 0, closed = 0, ended = 'no',
      }
      front.limit = limit
      if fits(front) then grant(front, mine)
      else
        mine.wake, mine.place = wake, front.next
        front.next = front.next + 1
        front.waiting = front.waiting or mine
        saveTicket(front, mine)
      end
    end
    if mine.token == 0 then queued = position(front, mine.place)
    else grants[#grants + 1] = grantOf(mine, false) end
  end
  if queued then return { kind = 'queued', position = queued } end
  return { kind = 'granted', grants = grants }
end

local function release(a, at)
  local id, unused = ARGV[a + 1], ARGV[a + 2] == '1'
  local front, problem = advanced(KEYS[at + 1], KEYS[at + 2])
  if not front then return nil, problem end
  local mine = find(front, id)
  if not mine then return lost(front, id) end
  if mine.token == 0 then dropTicket(front, mine)
  elseif mine.closed > now and not unused then
    mine.ended, mine.expires, front.touched = 'released', now, true
  else remove(front, mine) end
  advance(front)
  return { kind = 'released' }
end

for _, one in ipairs(left) do
  local place, a, at, count = one[1], one[2], one[3], one[4]
  local answer, problem
  if count == 0 then answer, problem = release(a, at) else answer, problem = claim(a, at, count) end
  -- What is wrong with one of them is not the others' affair.
  answers[place] = answer and cjson.encode(answer) or '!' .. problem
end
close()
return answers
`;

const RENEW = `
local answers = {}
for i = 1, #KEYS / 2 do
  local id, seq, ttl = ARGV[3 * i - 1], tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  local front, problem = advanced(KEYS[2 * i - 1], KEYS[2 * i])
  local mine = front and find(front, id)
  if not front then answers[i] = { kind = 'unknown', cause = problem }
  elseif not mine or mine.expires <= now then answers[i] = lost(front, id)
  else
    extend(front, mine, seq, ttl)
    if mine.token > 0 then answers[i] = { kind = 'granted', grant = grantOf(mine, false) }
    else answers[i] = { kind = 'queued', position = position(front, mine.place) } end
  end
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
local by, why, keptMs, keptMany = ARGV[2], ARGV[3], ${REVOKED_KEPT.ms}, ${REVOKED_KEPT.many}
local front = only(advanced(KEYS[1], KEYS[2]))
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
local limit = tonumber(ARGV[2])
local front = only(advanced(KEYS[1], KEYS[2]))
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

/** Changes nothing. */
const INSPECT = `
${HOLDER}
local answers = {}
for i = 1, #KEYS / 2 do
  local front = only(open(KEYS[2 * i - 1], KEYS[2 * i]))
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
  for place = front.first, front.next - 1 do
    local one = ticketAt(front, place)
    if one and one.expires > now then
      info.waiters[#info.waiters + 1] = {
        holder = one.holder, permits = one.permits, limit = front.limit,
        waitingMs = now - one.since, expiresInMs = one.expires - now,
      }
    end
  end
  answers[i] = info
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

export const SCRIPTS = {
  acts: script("acts", ACTS),
  renewals: script("renewals", `${PRELUDE}${RENEW}`),
  revoke: script("revoke", `${PRELUDE}${REVOKE}`),
  resize: script("resize", `${PRELUDE}${RESIZE}`),
  inspect: script("inspect", `${PRELUDE}${INSPECT}`),
};
