package limit

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/heteroflow/heteroflow/internal/store"
)

// Refusal is a limit that said no: of several the one that lasts longest.
type Refusal struct {
	standing
	model    string
	need     int64
	never    bool // the request is more than the limit
	unpriced bool // the model has no price
	of       *Reservation
}

// Status is the answer's: 429, or 403 for what no waiting cures.
func (r *Refusal) Status() int {
	if r.unpriced {
		return http.StatusForbidden
	}
	return http.StatusTooManyRequests
}

// Type and Code are those of OpenAI's error. Source: OpenAI's "Error codes" and the errors its API answers with.
func (r *Refusal) Type() string {
	switch {
	case r.unpriced:
		return "invalid_request_error"
	case r.kind.budget():
		return "insufficient_quota"
	case r.kind == Tokens:
		return "tokens"
	}
	return "requests"
}

// Code tells budgets from rates.
func (r *Refusal) Code() string {
	switch {
	case r.unpriced:
		return "model_not_priced"
	case r.kind.budget():
		return "insufficient_quota"
	}
	return "rate_limit_exceeded"
}

// whose names the limit in words.
func (s standing) whose() string {
	who := map[string]string{
		store.ScopeKey: "this API key", store.ScopeMember: "member " + s.limit.Subject, store.ScopeTenant: "tenant " + s.limit.Subject,
		store.ScopeEndpoint: "the endpoint of the model, for all who call it,",
	}[s.limit.Scope]
	if s.limit.Model == "" {
		return who
	}
	return who + " with model `" + s.limit.Model + "`"
}

// units are what a kind counts, in words.
var units = [kinds]string{"requests per min (RPM)", "tokens per min (TPM)", "requests at the same time", "tokens a month", "money a month"}

// Message says which limit it was, and what to do.
func (r *Refusal) Message() string {
	number := func(n int64) string {
		if r.kind == MonthMoney {
			return Money(n)
		}
		return strconv.FormatInt(n, 10)
	}
	switch {
	case r.unpriced:
		return fmt.Sprintf("The model `%s` has no price, and %s has a budget of money: ask for a price to be set.", r.model, r.whose())
	case r.kind.budget():
		return fmt.Sprintf("You exceeded your current quota: %s may use %s %s, %s are used or reserved and %s were asked for. It begins anew on %s.",
			r.whose(), number(r.cap), units[r.kind], number(r.used), number(r.need), r.ends.Format(time.DateOnly))
	case r.never:
		return fmt.Sprintf("Request too large for `%s`: %s has a limit on %s: Limit %s, Requested %s. Ask for less: a shorter prompt, or fewer max_tokens.",
			r.model, r.whose(), units[r.kind], number(r.cap), number(r.need))
	}
	return fmt.Sprintf("Rate limit reached for `%s`: %s has a limit on %s: Limit %s, Used %s, Requested %s. Please try again in %s.",
		r.model, r.whose(), units[r.kind], number(r.cap), number(r.used), number(r.need), r.wait.Round(time.Millisecond))
}

// Money writes an amount of billionths, without zeros at its end.
func Money(nanos int64) string {
	return strconv.FormatFloat(float64(nanos)/1e9, 'f', -1, 64)
}

// SetHeaders tells the client how its limits stand, when to come again, and whether that is of use. OpenAI's clients
// obey all three.
func (r *Refusal) SetHeaders(h http.Header, isAnthropic bool) {
	r.of.SetHeaders(h, isAnthropic)
	if r.unpriced || r.never {
		h.Set("X-Should-Retry", "false")
		return
	}
	h.Set("Retry-After", strconv.FormatInt(max(1, int64(math.Ceil(r.wait.Seconds()))), 10))
	if r.kind.budget() {
		h.Set("X-Should-Retry", "false")
		return
	}
	h.Set("Retry-After-Ms", strconv.FormatInt(max(1, r.wait.Milliseconds()+1), 10))
}
