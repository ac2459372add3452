package limit

import (
	"net/http"
	"strconv"
	"time"
)

// The names of OpenAI's headers. Source: OpenAI's guide "Rate limits", rate limits in headers.
var openai = [...]struct{ limit, remaining, reset string }{
	Requests: {"X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"},
	Tokens:   {"X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"},
}

// The names of Anthropic's. Source: Anthropic's API reference, rate limits, response headers.
var anthropic = [...]struct{ limit, remaining, reset string }{
	Requests: {"Anthropic-Ratelimit-Requests-Limit", "Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset"},
	Tokens:   {"Anthropic-Ratelimit-Tokens-Limit", "Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset"},
}

// SetHeaders tells the client how its limits stand, of each kind the one of which the least is left: a duration until
// all of it is free again for OpenAI's clients, a moment for Anthropic's. It may be called on nil.
func (r *Reservation) SetHeaders(h http.Header, isAnthropic bool) {
	if r == nil {
		return
	}
	now := r.clock.Now()
	var least [Concurrency]standing
	for _, acct := range r.accounts[:r.count] {
		rates, ok := acct.rates(now)
		for k, s := range rates {
			if ok[k] && (least[k].limit == nil || s.left() < least[k].left()) {
				least[k] = s
			}
		}
	}
	for k, least := range least {
		if least.limit == nil {
			continue
		}
		values := []string{strconv.FormatInt(least.cap, 10), strconv.FormatInt(least.left(), 10), least.full.Round(time.Millisecond).String()}
		names := openai[k]
		if isAnthropic {
			names, values[2] = anthropic[k], now.Add(least.full).UTC().Format(time.RFC3339)
		}
		h[names.limit], h[names.remaining], h[names.reset] = values[0:1:1], values[1:2:2], values[2:3:3]
	}
}
