-- Demand reports of gateways, for the scale signal. docs/decisions/086-one-number-through-the-store.md says why.
--
-- KEYS: the gateways that report (a hash: id = "seen number leaves name"; a later version may append values), this
-- gateway's report (a hash with the field "report"), then the reports of other gateways.
-- ARGV: the gateway, the number of its last report (0 = none yet), "1" if it leaves with it, its name, the report
-- ("" = the store should have it), then for each of the other reports its gateway and the number that is known.
-- Answer: "1" if the store has the report of this number, then for each other gateway its id, age in ms, number,
-- leaves, name and report; the report is "" unless it was asked for and has another number than what is known.
--NOW
local KEEP = 330000 -- ms for which a report is kept: somewhat longer than a silent gateway counts
local LEFT = 60000 -- ms for which it is kept that a gateway has left
local MOST = 256 -- gateways
local BYTES = 1048576 -- of the reports in one answer; a larger one is alone in its answer

local me, number, report = ARGV[1], ARGV[2], ARGV[5]
if report ~= '' then
  redis.call('HSET', KEYS[2], 'report', report)
  redis.call('EXPIRE', KEYS[2], KEEP / 1000)
  redis.call('HSET', KEYS[1], me, string.format('%.0f %s %s %s', now, number, ARGV[3], ARGV[4]))
  redis.call('EXPIRE', KEYS[1], 3600)
end

local others, has = {}, '0'
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local seen, told, leaves, name = string.match(all[i + 1], '^(%d+) (%d+) (%d) ?(%S*)')
  local age = now - (tonumber(seen) or 0)
  if not seen or math.abs(age) > KEEP or (leaves == '1' and age > LEFT) then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] == me then
    if told == number then has = '1' end
  else
    others[#others + 1] = {id = all[i], age = math.max(0, age), told = told, leaves = leaves, name = name}
  end
end
table.sort(others, function(one, other) return one.age < other.age end)
while #others > MOST do
  redis.call('HDEL', KEYS[1], table.remove(others).id)
end

local key_of, known = {}, {}
for i = 3, #KEYS do
  local id = ARGV[2 * i]
  key_of[id], known[id] = KEYS[i], ARGV[2 * i + 1]
end
local bytes, texts = 0, {}
for _, other in ipairs(others) do
  if key_of[other.id] and known[other.id] ~= other.told and bytes < BYTES then
    local text = redis.call('HGETALL', key_of[other.id])[2] or ''
    if bytes == 0 or bytes + #text <= BYTES then
      bytes, texts[other.id] = bytes + #text, text
    end
  end
end
local answer = {has}
for _, other in ipairs(others) do
  local values = {other.id, string.format('%.0f', other.age), other.told, other.leaves, other.name, texts[other.id] or ''}
  for _, value in ipairs(values) do answer[#answer + 1] = value end
end
return answer
