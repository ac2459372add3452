package command

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/api/client"
)

func usageCommand(env Env) *command {
	c := newCommand(env, "Show what was used through the gateway", "")
	conn, out := c.withConnection(), c.withOutput()
	by := c.flags.String("by", "model", "add up by model, key, endpoint or tenant; request lists single requests")
	from := c.flags.String("from", "", "from this `moment` on: RFC 3339, or how long ago, such as 24h")
	to := c.flags.String("to", "", "up to this `moment`: RFC 3339, or how long ago")
	page := c.withPage()
	groups := []string{"model", "key", "endpoint", "tenant", "request"}
	c.predict["by"] = complete.PredictSet(groups...)
	c.run = func(ctx context.Context, _ []string) error {
		if err := oneOf("by", *by, groups...); err != nil {
			return err
		}
		begin, err := parseMoment("from", *from)
		if err != nil {
			return err
		}
		end, err := parseMoment("to", *to)
		if err != nil {
			return err
		}
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		if *by == "request" {
			answer, err := service.ListUsageWithResponse(ctx, &client.ListUsageParams{From: begin, To: end, Limit: page.limit, Cursor: given(*page.cursor)})
			list, raw, err := read(conn, answer, err)
			if err != nil {
				return err
			}
			return c.print(out, list, raw, func() error {
				c.tellNext(list.NextCursor)
				return c.printf("%s", requestTable(list.Items))
			})
		}
		group := client.SumUsageParamsGroupBy(*by)
		answer, err := service.SumUsageWithResponse(ctx, &client.SumUsageParams{From: begin, To: end, GroupBy: &group})
		list, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, list, raw, func() error {
			if list.GPUSettledTo != nil {
				c.tell("GPU seconds are settled up to %s, by whole hours.", moment(list.GPUSettledTo))
			}
			return c.printf("%s", sumTable(*by, list, namesOf(ctx, service, *by)))
		})
	}
	return c
}

// namesOf gives the names of keys, or the models of endpoints, by id. It may miss some, and all where the caller may
// not list them: the ids are shown in any case.
func namesOf(ctx context.Context, service *client.ClientWithResponses, by string) map[string]string {
	names, most := map[string]string{}, 1000
	switch by {
	case "key":
		answer, err := service.ListKeysWithResponse(ctx, &client.ListKeysParams{Limit: &most})
		if err != nil || answer.JSON200 == nil {
			return names
		}
		for _, k := range answer.JSON200.Items {
			names[k.ID] = k.Name
		}
	case "endpoint":
		answer, err := service.ListEndpointsWithResponse(ctx, &client.ListEndpointsParams{Limit: &most})
		if err != nil || answer.JSON200 == nil {
			return names
		}
		for _, e := range answer.JSON200.Items {
			names[e.ID] = e.Model
		}
	}
	return names
}

// parseMoment reads a time, or a duration before now; nil for the empty text.
func parseMoment(name, text string) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return &at, nil
	}
	ago, err := time.ParseDuration(text)
	if err != nil || ago < 0 {
		return nil, &usageError{fmt.Sprintf("-%s %q is no moment: write it as 2026-01-31T12:00:00Z, or how long ago, such as 24h", name, text)}
	}
	at := time.Now().Add(-ago).UTC()
	return &at, nil
}

func sumTable(by string, list *client.UsageSumList, names map[string]string) table {
	heads := map[string][]string{"model": {"Model"}, "key": {"Key", "Name"}, "endpoint": {"Endpoint", "Model"}, "tenant": {"Tenant"}}[by]
	t := table{append(heads, "Requests", "Prompt Tokens", "Of Them Cached", "Completion Tokens", "Estimated", "Not Counted", "GPU Seconds")}
	for _, s := range list.Items {
		cards := "-" // nothing is settled yet
		if list.GPUSettledTo != nil {
			cards = strconv.FormatFloat(s.GPUSeconds, 'f', 1, 64)
		}
		cells := []string{dash(s.Name)}
		if by == "key" || by == "endpoint" {
			cells = append(cells, dash(names[s.Name]))
		}
		t.row(append(cells, strconv.FormatInt(s.Requests, 10), strconv.FormatInt(s.PromptTokens, 10),
			strconv.FormatInt(s.CachedTokens, 10), strconv.FormatInt(s.CompletionTokens, 10), strconv.FormatInt(s.Estimated, 10), strconv.FormatInt(s.Unknown, 10), cards)...)
	}
	return t
}

func requestTable(list []client.Usage) table {
	t := table{{"ID", "Started", "Model", "Operation", "Status", "End", "Prompt", "Cached", "Completion", "Tries", "Backend", "First ms", "ms"}}
	for _, u := range list {
		about := ""
		if u.Estimated {
			about = "~"
		}
		tokens := func(n *int64, about string) string {
			if n == nil {
				return "-" // the engine did not say
			}
			return about + strconv.FormatInt(*n, 10)
		}
		first := "-"
		if u.FirstByteMS != nil {
			first = strconv.FormatInt(*u.FirstByteMS, 10)
		}
		t.row(u.ID, moment(&u.StartedAt), u.Model, u.Operation, strconv.Itoa(u.Status), u.End, tokens(u.PromptTokens, about),
			tokens(u.CachedTokens, ""), tokens(u.CompletionTokens, about), strconv.Itoa(u.Tries), dash(text(u.Backend)), first, strconv.FormatInt(u.DurationMS, 10))
	}
	return t
}
