-- Demand reports of gateways, for the scale signal. docs/decisions/086-one-number-through-the-store.md says why.
--
-- KEYS: the gateways that report (a hash: id = "seen number leaves name"; a later version may append values), this
-- gateway's report (a hash with the field "report"), then the reports of other gateways.
-- ARGV: the gateway, the number of its last report (0 = none yet), "1" if it leaves with it, its name, the report
-- ("" = the store should have it), then for each of the other reports its gateway and the number that is known.
-- Answer: "1" if the store has the report of this number, how many of the other reports it has looked at (those after
-- them found no room in this answer), then for each other gateway its id, age in ms, number,
-- leaves, name and report; the report is "" unless it was asked for and has another number than what is known.
--NOW
local KEEP = 330000 -- ms for which a report is kept, the last one of a gateway too: somewhat longer than a silent one counts
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
  if not seen or #told > 19 or math.abs(age) > KEEP then
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

local told_by = {}
for _, other in ipairs(others) do told_by[other.id] = other.told end
local bytes, texts, looked_at = 0, {}, 0
for i = 3, #KEYS do
  local id = ARGV[2 * i]
  if told_by[id] and told_by[id] ~= ARGV[2 * i + 1] then
    local all, text = redis.call('HGETALL', KEYS[i]), ''
    for at = 1, #all, 2 do
      if all[at] == 'report' then text = all[at + 1] end
    end
    if bytes > 0 and bytes + #text > BYTES then break end
    bytes, texts[id] = bytes + #text, text
  end
  looked_at = looked_at + 1
end
local answer = {has, tostring(looked_at)}
for _, other in ipairs(others) do
  local values = {other.id, string.format('%.0f', other.age), other.told, other.leaves, other.name, texts[other.id] or ''}
  for _, value in ipairs(values) do answer[#answer + 1] = value end
end
return answer
