package command

import (
	"context"
	"fmt"
	"strconv"

	"github.com/heteroflow/heteroflow/api/client"
)

func scalingCommand(env Env) *command {
	c := newCommand(env, "Show the groups that are scaled by their load, and why each has what it has", "")
	c.about = `
A group is scaled when its scaling block has a policy with a block heteroflow. With -verbose what each target asks for is
shown, too. What was last decided is shown: every 30 seconds.`
	conn, out := c.withConnection(), c.withOutput()
	c.run = func(ctx context.Context, _ []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.ListScalingWithResponse(ctx)
		list, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, list, raw, func() error { return c.printf("%s", scalingTable(list.Items, *out.verbose)) })
	}
	return c
}

func scalingTable(list []client.ScaledGroup, verbose bool) table {
	t := table{{"Job", "Group", "Has", "Wanted", "Needed", "Bounds", "Why"}}
	for _, g := range list {
		wanted, needed := strconv.Itoa(g.Wanted), "-" // no gateway tells
		if g.DryRun {
			wanted += " (dry run)"
		}
		if g.Needed != nil {
			needed = strconv.Itoa(*g.Needed)
		}
		why := g.Reason
		if p := text(g.Problem); p != "" {
			why = p
		}
		t.row(g.JobID, g.Group, strconv.Itoa(g.Count), wanted, needed, fmt.Sprintf("%d-%d", g.Min, g.Max), why)
		if verbose {
			for _, s := range g.Signals {
				t.row("", "", "", "", "", "", s)
			}
		}
	}
	return t
}
