-- settle: what a run had used up when its request was ended while it ran, kept in the outcome's report.
-- KEYS: flags stat | res:<rid>
-- ARGV: now rid wid token report output_tokens
-- Replies: {OK} {ALREADY} {LOST} (another run's, or one that told its report itself) {GONE}
-- Moves: none. Once for each request.
-- FLAGS: allow-oom
-- USES: prelude numbers
local raw = redis.call('GET', KEYS[NK + 1])
if not raw then return {'GONE'} end
local outcome = cmsgpack.unpack(raw)
if outcome[5] ~= ARGV[3] or outcome[6] ~= ARGV[4] then return {'LOST'} end
if outcome[16] ~= '' then return {'ALREADY'} end
outcome[16] = ARGV[5]
redis.call('SET', KEYS[NK + 1], cmsgpack.pack(outcome), 'KEEPTTL')
count('settled_tokens', tonumber(ARGV[6]))
return {'OK'}
