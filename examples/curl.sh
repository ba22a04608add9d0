#!/usr/bin/env bash
# The service by curl: one question, a list, and a request that is polled.   examples/curl.sh [URL]
# SLUICE_API_KEY is one of API_KEYS, where the service asks for one.
set -eu
url=${1:-http://127.0.0.1:8000}
json='content-type: application/json'
key="authorization: Bearer ${SLUICE_API_KEY:-none}"

echo '# How is it?'
curl -sS "$url/"

printf '\n\n# One question: the reply comes when the answer is there.\n'
curl -fsS "$url/predict" -H "$key" -H "$json" -d '{"prompt": "What is the capital of France?"}'

printf '\n\n# A list: one reply, the answers in order.\n'
curl -fsS "$url/predict" -H "$key" -H "$json" -d '{"prompt": ["Name a colour.", "Name a city."]}'

printf '\n\n# Submit, then poll: ?wait=20 holds the line for up to 20 s.\n'
id=$(curl -fsS "$url/requests" -H "$key" -H "$json" -d '{"prompt": "Say hello.", "max_tokens": 8}' |
    sed -E 's/.*"id": *"([^"]+)".*/\1/')
echo "$id"
curl -fsS "$url/requests/$id?wait=20" -H "$key"
echo
