package command

import (
	"context"

	"github.com/heteroflow/heteroflow/api/client"
)

func auditCommand(env Env) *command {
	c := newCommand(env, "List who changed keys, limits and prices, newest first", "")
	conn, out := c.withConnection(), c.withOutput()
	page := c.withPage()
	c.run = func(ctx context.Context, _ []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.ListAuditWithResponse(ctx, &client.ListAuditParams{Limit: page.limit, Cursor: given(*page.cursor)})
		list, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, list, raw, func() error {
			t := table{{"At", "Actor", "Tenant", "Action", "Object", "Detail"}}
			for _, e := range list.Items {
				t.row(moment(&e.At), e.Actor, dash(text(e.Tenant)), e.Action, e.Object, dash(text(e.Detail)))
			}
			c.tellNext(list.NextCursor)
			return c.printf("%s", t)
		})
	}
	return c
}
