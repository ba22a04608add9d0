-- list_letters: the dead letters before one of them, the newest first: n at most, and no more than some MiB of payloads.
-- KEYS: dlq flags
-- ARGV: now before n; before: an entry's id, exclusive as `(<id>`, or + for the newest
-- Replies: {more, {letter, rid, payload bytes, outcome}...}; more 1: there are older ones
-- Moves: none.
-- FLAGS: allow-oom no-writes
-- USES: prelude
local BYTES_A_CALL = 4194304
local at, n, reply, bytes = ARGV[2], tonumber(ARGV[3]), {0}, 0
while true do
  local letter = redis.call('XREVRANGE', KEYS[1], at, '-', 'COUNT', 1)[1]
  if not letter then return reply end
  if #reply > n or (bytes > BYTES_A_CALL and #reply > 1) then
    reply[1] = 1
    return reply
  end
  local fields = letter[2]
  reply[#reply + 1] = {letter[1], fields[2], #fields[4], fields[6]}
  bytes, at = bytes + #fields[4], '(' .. letter[1]
end
