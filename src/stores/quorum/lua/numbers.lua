-- Whether a node may record a number that a client proposes: it differs from the node's clock by a quarter of
-- maxTtl at most.
local function isPlausible(number)
  return number <= MAX_TOKEN and math.abs(number - micros) <= ARGV[2] * 250
end
