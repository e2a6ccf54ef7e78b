-- Work of tenants and classes at each gateway, for fair shares over all of them.
-- docs/decisions/088-fairness-over-gateways.md says why.
--
-- KEYS: the gateways that tell their work (a hash: id = "seen number"; a later version may append values), this
-- gateway's last batches (a hash: number = "at text"), then the batches of other gateways.
-- ARGV: the gateway, the number of its last batch, the batch ("" = nothing is new), then for each of the other hashes
-- its gateway and the number of the last batch that is known.
-- Answer: the time in ms, how many of the other hashes it has looked at (those after them found no room in this answer),
-- the number of other gateways, their ids and numbers, then gateway, number, time and text of each batch that is not
-- known, those of one gateway in their order.
--NOW
local KEEP = 60000 -- ms for which a gateway that tells nothing is known; longer than its batches are
local KEEP_BATCHES = 30 -- s
local BATCHES = 16 -- of each gateway
local MOST = 256 -- gateways
local BYTES = 1048576 -- of the batches in one answer

local me, number, text = ARGV[1], tonumber(ARGV[2]) or 0, ARGV[3]
if text ~= '' then
  local told, last = redis.call('HGETALL', KEYS[2]), 0
  for i = 1, #told, 2 do last = math.max(last, tonumber(told[i]) or 0) end
  if number > last then
    for i = 1, #told, 2 do
      if (tonumber(told[i]) or 0) <= number - BATCHES then redis.call('HDEL', KEYS[2], told[i]) end
    end
    redis.call('HSET', KEYS[2], ARGV[2], string.format('%.0f', now) .. ' ' .. text)
    redis.call('EXPIRE', KEYS[2], KEEP_BATCHES)
    redis.call('HSET', KEYS[1], me, string.format('%.0f', now) .. ' ' .. ARGV[2])
    redis.call('EXPIRE', KEYS[1], 3600)
  end
end

local others, told_by = {}, {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local seen, told = string.match(all[i + 1], '^(%d+) (%d+)')
  local age = now - (tonumber(seen) or 0)
  if not seen or #told > 15 or math.abs(age) > KEEP then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= me then
    others[#others + 1] = {id = all[i], age = age, told = told}
  end
end
table.sort(others, function(one, other) return one.age < other.age end)
while #others > MOST do
  redis.call('HDEL', KEYS[1], table.remove(others).id)
end

local answer = {string.format('%.0f', now), '0', tostring(#others)}
for _, other in ipairs(others) do
  told_by[other.id] = tonumber(other.told)
  answer[#answer + 1], answer[#answer + 2] = other.id, other.told
end
local bytes, looked_at, is_full = 0, 0, false
for i = 3, #KEYS do
  local id, known = ARGV[2 * i - 2], tonumber(ARGV[2 * i - 1]) or 0
  if (told_by[id] or 0) > known then
    local told, batches = redis.call('HGETALL', KEYS[i]), {}
    for at = 1, #told, 2 do
      local count = tonumber(told[at]) or 0
      if count > known then batches[#batches + 1] = {number = count, value = told[at + 1]} end
    end
    table.sort(batches, function(one, other) return one.number < other.number end)
    for _, batch in ipairs(batches) do
      local at, text = string.match(batch.value, '^(%d+) (.*)$')
      if at and bytes > 0 and bytes + #text > BYTES then
        is_full = true
        break
      elseif at then
        bytes = bytes + #text
        local values = {id, string.format('%.0f', batch.number), at, text}
        for _, value in ipairs(values) do answer[#answer + 1] = value end
      end
    end
  end
  if is_full then break end
  looked_at = looked_at + 1
end
answer[2] = tostring(looked_at)
return answer
