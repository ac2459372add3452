package command

import (
	"context"
	"flag"
	"fmt"
	"strconv"

	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/api/client"
)

func limitSetCommand(env Env) *command {
	c := newCommand(env, "Limit what a key, a member or a tenant uses of the gateway, or all of an endpoint", "SCOPE SUBJECT")
	c.about = `
SCOPE is key, member, tenant or endpoint, SUBJECT a key's or endpoint's id, a member or a tenant. The numbers that are given take the place of
all that the subject had for the model, or for all models together without -model; 0 is nothing at all. All limits
that a request has are kept, the tightest wins. Budgets of money need prices: heteroflow price set.`
	conn, out := c.withConnection(), c.withOutput()
	scopes := []string{"key", "member", "tenant", "endpoint"}
	c.predict[""] = complete.PredictSet(scopes...)
	tenant := c.flags.String("tenant", "", "`tenant` of a member; your own when left out")
	model := c.flags.String("model", "", "`name` of a model, as clients send it; all models together when left out")
	requests := c.wholeFlag("requests-per-minute", "at most this `many` requests in any minute")
	tokens := c.wholeFlag("tokens-per-minute", "at most this `many` tokens of prompts and answers in any minute")
	concurrency := c.wholeFlag("concurrency", "at most this `many` requests at the same time")
	budget := c.wholeFlag("tokens-per-month", "a budget of this `many` tokens a month, UTC")
	money := c.numberFlag("money-per-month", "a budget of this `much` money a month, in the unit that prices are in")
	c.run = func(ctx context.Context, args []string) error {
		if err := oneOf("scope", args[0], scopes...); err != nil {
			return &usageError{fmt.Sprintf("%q is no scope: write key, member, tenant or endpoint, then its id or name", args[0])}
		}
		if *requests == nil && *tokens == nil && *concurrency == nil && *budget == nil && *money == nil {
			return &usageError{"no number is given: write at least one, such as -requests-per-minute 60, or heteroflow limit delete"}
		}
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.SetLimitWithResponse(ctx, client.LimitWrite{
			Scope: client.LimitScope(args[0]), Subject: args[1], Tenant: given(*tenant), Model: given(*model),
			RequestsPerMinute: *requests, TokensPerMinute: *tokens, Concurrency: *concurrency, TokensPerMonth: *budget, MoneyPerMonth: *money,
		})
		limit, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, limit, raw, func() error { return c.printf("%s\n", limit.ID) })
	}
	return c
}

// wholeFlag is a flag of a whole number of 0 or more; nil when it is not given.
func (c *command) wholeFlag(name, usage string) **int64 {
	value := new(*int64)
	c.flags.Var(flagFunc(func(text string) error {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("write a whole number of 0 or more")
		}
		*value = &n
		return nil
	}), name, usage)
	return value
}

// numberFlag is a flag of a number of 0 or more; nil when it is not given.
func (c *command) numberFlag(name, usage string) **float64 {
	value := new(*float64)
	c.flags.Var(flagFunc(func(text string) error {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n >= 0) {
			return fmt.Errorf("write a number of 0 or more, such as 2.5")
		}
		*value = &n
		return nil
	}), name, usage)
	return value
}

// flagFunc is a flag that is read by a function.
type flagFunc func(string) error

var _ flag.Value = flagFunc(nil)

func (f flagFunc) String() string { return "" }

// Set is part of flag.Value.
func (f flagFunc) Set(text string) error { return f(text) }

func limitListCommand(env Env) *command {
	c := newCommand(env, "List limits, with what was used of budgets this month", "")
	conn, out := c.withConnection(), c.withOutput()
	page := c.withPage()
	c.run = func(ctx context.Context, _ []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.ListLimitsWithResponse(ctx, &client.ListLimitsParams{Limit: page.limit, Cursor: given(*page.cursor)})
		list, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, list, raw, func() error {
			t := table{{"ID", "Tenant", "Scope", "Subject", "Model", "Requests/min", "Tokens/min", "At Once", "Tokens/month", "Used", "Money/month", "Used"}}
			for _, l := range list.Items {
				model, tokens, money := "(all)", "-", "-"
				if l.Model != nil {
					model = *l.Model
				}
				if l.Used != nil {
					tokens, money = strconv.FormatInt(l.Used.Tokens, 10), amount(&l.Used.Money)
				}
				t.row(l.ID, l.Tenant, string(l.Scope), l.Subject, model, count(l.RequestsPerMinute), count(l.TokensPerMinute),
					count(l.Concurrency), count(l.TokensPerMonth), tokens, amount(l.MoneyPerMonth), money)
			}
			c.tellNext(list.NextCursor)
			return c.printf("%s", t)
		})
	}
	return c
}

// count prints a number that may not be there.
func count(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}

// amount prints money that may not be there.
func amount(n *float64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatFloat(*n, 'f', -1, 64)
}

func limitDeleteCommand(env Env) *command {
	c := newCommand(env, "Delete a limit", "ID")
	conn := c.withConnection()
	c.run = func(ctx context.Context, args []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.DeleteLimitWithResponse(ctx, args[0])
		if err := done(conn, answer, err); err != nil {
			return err
		}
		c.tell("Limit %s deleted.", args[0])
		return nil
	}
	return c
}
