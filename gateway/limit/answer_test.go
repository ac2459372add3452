package limit

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/store"
)

// TestHeaders_OfAnAnswer in the formats that OpenAI and Anthropic document, of the limit of which the least is left.
func TestHeaders_OfAnAnswer(t *testing.T) {
	t.Parallel()
	f := newFleet(t,
		of(store.ScopeKey, "k1", store.Caps{RequestsPerMinute: ptr[int64](60), TokensPerMinute: ptr[int64](150_000)}),
		of(store.ScopeTenant, "research", store.Caps{RequestsPerMinute: ptr[int64](1000), TokensPerMinute: ptr[int64](5000)}))
	i := f.start()
	r, _ := i.reserve(ann(10, 90))
	h := http.Header{}
	r.SetHeaders(h, false)
	want := http.Header{
		"X-Ratelimit-Limit-Requests": {"60"}, "X-Ratelimit-Remaining-Requests": {"59"}, "X-Ratelimit-Reset-Requests": {"1m1s"},
		"X-Ratelimit-Limit-Tokens": {"5000"}, "X-Ratelimit-Remaining-Tokens": {"4900"}, "X-Ratelimit-Reset-Tokens": {"1m1s"},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	h = http.Header{}
	r.SetHeaders(h, true)
	want = http.Header{
		"Anthropic-Ratelimit-Requests-Limit": {"60"}, "Anthropic-Ratelimit-Requests-Remaining": {"59"}, "Anthropic-Ratelimit-Requests-Reset": {"2026-03-01T12:01:01Z"},
		"Anthropic-Ratelimit-Tokens-Limit": {"5000"}, "Anthropic-Ratelimit-Tokens-Remaining": {"4900"}, "Anthropic-Ratelimit-Tokens-Reset": {"2026-03-01T12:01:01Z"},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestRefusal_SaysWhichLimitAndWhen.
func TestRefusal_SaysWhichLimitAndWhen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit             store.LimitUse
		first, then       Ask
		kind, code, words string
		header            http.Header
	}{
		"requests": {
			of(store.ScopeKey, "k1", store.Caps{RequestsPerMinute: ptr[int64](1)}), ann(1, 1), ann(1, 1), "requests", "rate_limit_exceeded",
			"Rate limit reached for `m`: this API key has a limit on requests per min (RPM): Limit 1, Used 1, Requested 1. Please try again in 1m0.5s.",
			http.Header{"Retry-After": {"61"}, "Retry-After-Ms": {"60501"}, "X-Ratelimit-Limit-Requests": {"1"}, "X-Ratelimit-Remaining-Requests": {"0"}, "X-Ratelimit-Reset-Requests": {"1m0.5s"}},
		},
		"tokens": {
			of(store.ScopeMember, "ann", store.Caps{TokensPerMinute: ptr[int64](100)}), ann(10, 80), ann(10, 10), "tokens", "rate_limit_exceeded",
			"member ann has a limit on tokens per min (TPM): Limit 100, Used 90, Requested 20. Please try again in 1m0.5s.",
			http.Header{"Retry-After": {"61"}, "Retry-After-Ms": {"60501"}, "X-Ratelimit-Limit-Tokens": {"100"}, "X-Ratelimit-Remaining-Tokens": {"10"}, "X-Ratelimit-Reset-Tokens": {"1m0.5s"}},
		},
		"too large": {
			of(store.ScopeTenant, "research", store.Caps{TokensPerMinute: ptr[int64](100)}), ann(1, 1), ann(10, 91), "tokens", "rate_limit_exceeded",
			"Request too large for `m`: tenant research has a limit on tokens per min (TPM): Limit 100, Requested 101.",
			http.Header{"X-Should-Retry": {"false"}, "X-Ratelimit-Limit-Tokens": {"100"}, "X-Ratelimit-Remaining-Tokens": {"98"}, "X-Ratelimit-Reset-Tokens": {"1m0.5s"}},
		},
		"at the same time": {
			of(store.ScopeKey, "k1", store.Caps{Concurrency: ptr[int64](1)}), ann(1, 1), ann(1, 1), "requests", "rate_limit_exceeded",
			"this API key has a limit on requests at the same time: Limit 1, Used 1, Requested 1. Please try again in 1s.",
			http.Header{"Retry-After": {"1"}, "Retry-After-Ms": {"1001"}},
		},
		"a budget": {
			of(store.ScopeTenant, "research", store.Caps{TokensPerMonth: ptr[int64](10)}), ann(5, 5), ann(1, 1), "insufficient_quota", "insufficient_quota",
			"You exceeded your current quota: tenant research may use 10 tokens a month, 10 are used or reserved and 2 were asked for. It begins anew on 2026-04-01.",
			http.Header{"Retry-After": {"2635200"}, "X-Should-Retry": {"false"}},
		},
		"money": {
			of(store.ScopeKey, "k1", store.Caps{NanosPerMonth: ptr[int64](2_500_000_000)}), ann(1000, 1000), ann(1000, 1000), "insufficient_quota", "insufficient_quota",
			"this API key may use 2.5 money a month, 2 are used or reserved and 2 were asked for.",
			http.Header{"Retry-After": {"2635200"}, "X-Should-Retry": {"false"}},
		},
	} {
		c.limit.Model = "m"
		f := newFleet(t, c.limit)
		f.store.prices = []store.Price{{Model: "m", PromptNanos: 1_000_000, CompletionNanos: 1_000_000}}
		i := f.start()
		if r, refusal := i.reserve(c.first); r == nil {
			t.Fatalf("%s: %+v", name, refusal)
		}
		f.clock.Advance(500 * time.Millisecond)
		_, refusal := i.reserve(c.then)
		if refusal == nil {
			t.Fatalf("%s: not refused", name)
		}
		words := strings.ReplaceAll(refusal.Message(), " with model `m`", "")
		if refusal.Status() != http.StatusTooManyRequests || refusal.Type() != c.kind || refusal.Code() != c.code || !strings.Contains(words, c.words) || !strings.Contains(refusal.Message(), "with model `m`") {
			t.Errorf("%s: %d %s %s %q", name, refusal.Status(), refusal.Type(), refusal.Code(), refusal.Message())
		}
		h := http.Header{}
		refusal.SetHeaders(h, false)
		if name == "a budget" || name == "money" { // a month less half a day and half a second
			c.header.Set("Retry-After", "2635200")
		}
		if diff := cmp.Diff(c.header, h); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
