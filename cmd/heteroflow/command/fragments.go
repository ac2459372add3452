package command

import (
	"context"
	"fmt"

	"github.com/heteroflow/heteroflow/api/client"
)

func fragmentsCommand(env Env) *command {
	c := newCommand(env, "Show how much of what is free the usual demand cannot use", "")
	c.about = `
What is free is counted in cards, a share by its part of a card. Unusable is how much of it an allocation of the demand that
the service has learnt cannot use, on average; "-" while it has learnt none. With -verbose each pool is shown, too: a shared
card is a pool of its own.`
	conn, out := c.withConnection(), c.withOutput()
	c.run = func(ctx context.Context, _ []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.GetFragmentationWithResponse(ctx)
		report, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, report, raw, func() error { return c.printf("%s", fragmentationTable(report, *out.verbose)) })
	}
	return c
}

func fragmentationTable(report *client.Fragmentation, verbose bool) table {
	t := table{{"Node", "Pool", "Free", "Unusable"}}
	for _, n := range report.Nodes {
		t.row(n.NodeName, "", cardsText(&n.FreeCards), cardsText(n.UnusableCards))
		if verbose {
			for _, p := range n.Pools {
				t.row("", p.Group, cardsText(&p.FreeCards), cardsText(p.UnusableCards))
			}
		}
	}
	t.row("all", "", cardsText(&report.FreeCards), cardsText(report.UnusableCards))
	return t
}

// cardsText is a number of cards; "-" for one that is not known.
func cardsText(n *float64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *n)
}
