package server

import (
	"cmp"

	"github.com/heteroflow/heteroflow/gateway/limit"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/internal/store"
)

// reserve takes what the call needs of its limits and tells the client how they stand, or has answered.
func (c *call) reserve() (*limit.Reservation, bool) {
	ask := c.asks
	ask.Tenant, ask.Member, ask.KeyID = c.who.Tenant, cmp.Or(c.who.Member, c.who.User), c.who.KeyID
	ask.Model, ask.EndpointID, ask.Free = c.row.Model, c.row.EndpointID, c.operation.Free
	ask.Answers = ask.Answers || c.operation.Text && c.operation.Token != ""
	reserved, refusal := c.h.limits.Reserve(c.r.Context(), ask)
	if refusal == nil {
		reserved.SetHeaders(c.w.Header(), c.operation.Shape == relay.Anthropic)
		return reserved, true
	}
	c.row.Status = refusal.Status()
	refusal.SetHeaders(c.w.Header(), c.operation.Shape == relay.Anthropic)
	relay.WriteError(c.w, c.r, c.row.Status, refusal.Type(), refusal.Code(), refusal.Message())
	return nil, false
}

// used is what the call used, as far as that is known.
func (c *call) used() limit.Used {
	u := limit.Used{Prompt: c.row.PromptTokens, Cached: c.row.CachedTokens, Completion: c.row.CompletionTokens}
	u.Ran = c.row.End == store.EndDone || c.row.End == store.EndClientGone && c.row.Backend != "" || sum(u.Prompt)+sum(u.Completion) > 0
	return u
}

func sum(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
