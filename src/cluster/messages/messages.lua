-- Messages between gateways: questions about requests and past use, and answers.
-- docs/decisions/099-requests-over-gateways.md says why.
--
-- KEYS: the messages (a hash: number = "at from to text").
-- ARGV: the gateway, the number of the last message that it has heard, then to ("*" = all) and text of each message
-- that it sends.
-- Answer: the number of the last message, then from and text of each message for this gateway.
--NOW
local VALID = 2000 -- ms
local MOST = 256 -- messages
local BYTES = 1048576 -- of all texts

local me, last = ARGV[1], tonumber(ARGV[2]) or 0
-- A clock of the store that was ahead must not make this gateway deaf.
if last > (now + VALID) * 1000 then last = 0 end

local all, heard, newest, count, bytes = redis.call('HGETALL', KEYS[1]), {}, 0, 0, 0
for i = 1, #all, 2 do
  local number = tonumber(all[i])
  local at, from, to, text = string.match(all[i + 1], '^(%d+) (%S+) (%S+) (.*)$')
  if not number or not at or math.abs(now - tonumber(at)) > VALID then
    redis.call('HDEL', KEYS[1], all[i])
  else
    newest, count, bytes = math.max(newest, number), count + 1, bytes + #text
    if number > last and from ~= me and (to == '*' or to == me) then
      heard[#heard + 1] = {number = number, from = from, text = text}
    end
  end
end

for i = 3, #ARGV - 1, 2 do
  local to, text = ARGV[i], ARGV[i + 1]
  if count < MOST and bytes + #text <= BYTES then
    newest, count, bytes = math.max(newest, now * 1000) + 1, count + 1, bytes + #text
    redis.call('HSET', KEYS[1], string.format('%.0f', newest), string.format('%.0f %s %s %s', now, me, to, text))
    redis.call('EXPIRE', KEYS[1], 3600)
  end
end

local answer = {string.format('%.0f', newest)}
table.sort(heard, function(one, other) return one.number < other.number end)
for _, message in ipairs(heard) do
  answer[#answer + 1], answer[#answer + 2] = message.from, message.text
end
return answer
