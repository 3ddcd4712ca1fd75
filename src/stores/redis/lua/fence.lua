-- Checks the guards of a transaction, raises their resources, then runs the commands: one step for everybody
-- else. KEYS: one key for each guard. ARGV: the number of guards; token, floor and "strict" for each; then for
-- each command the number of its words, and the words. Numbers have 20 digits, so that they compare as text.
local FORMAT = '1:'
local NONE = string.rep('0', 20)

local guards = tonumber(ARGV[1])
local at = 2
local raises = {}
for i = 1, guards do
  local token, floor, isStrict = ARGV[at], ARGV[at + 1], ARGV[at + 2] == 'strict'
  at = at + 3
  -- An earlier guard of this transaction may have raised the same resource.
  local value = raises[KEYS[i]] or redis.call('GET', KEYS[i])
  local highest = NONE
  if value then
    if #value ~= 22 or not value:find('^' .. FORMAT .. '%d+$') then return {'foreign', i, value} end
    highest = value:sub(3)
  end
  if token < highest then return {'stale', i, highest} end
  if isStrict and (not value or highest < floor) then return {'not-entered', i, highest} end
  if not value or highest < floor then raises[KEYS[i]] = FORMAT .. floor end
end
for key, value in pairs(raises) do redis.call('SET', key, value) end

local replies = {'done'}
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  local reply = redis.pcall(unpack(ARGV, at + 1, last))
  if type(reply) == 'table' and reply.err then return {'failed', #replies, reply.err} end
  replies[#replies + 1] = reply
  at = last + 1
end
return replies
