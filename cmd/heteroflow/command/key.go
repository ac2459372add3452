package command

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/api/client"
)

func keyCreateCommand(env Env) *command {
	c := newCommand(env, "Make a key, and print it once", "NAME")
	c.about = `
Kinds: admin and tenant keys are for people and programs, node keys for device plugins, endpoint keys for users
of the gateway. The key itself is the only thing on standard output, and is not shown again.`
	conn, out := c.withConnection(), c.withOutput()
	kind := c.flags.String("kind", "tenant", "admin, tenant, node or endpoint")
	role := c.flags.String("role", "", "admin, member, viewer or node; by kind when left out")
	tenant := c.flags.String("tenant", "", "`tenant` that the key acts for; your own when left out")
	member := c.flags.String("member", "", "`member` of the tenant for whom the key acts; you when left out")
	expires := c.flags.Duration("expires", 0, "how long the key is good for, such as 720h; for ever when left out")
	var endpoints stringList
	c.flags.Var(&endpoints, "endpoint", "`id` of an endpoint that an endpoint key may use, all when left out; may be repeated")
	kinds, roles := []string{"admin", "tenant", "node", "endpoint"}, []string{"admin", "member", "viewer", "node"}
	c.predict["kind"] = complete.PredictSet(kinds...)
	c.predict["role"] = complete.PredictSet(roles...)
	c.run = func(ctx context.Context, args []string) error {
		if err := oneOf("kind", *kind, kinds...); err != nil {
			return err
		}
		if *role != "" {
			if err := oneOf("role", *role, roles...); err != nil {
				return err
			}
		}
		if *expires < 0 {
			return &usageError{"-expires is in the past: write how long the key is good for, such as 720h"}
		}
		body := client.KeyCreate{Name: args[0], Kind: client.KeyKind(*kind), Tenant: given(*tenant), Member: given(*member)}
		if *role != "" {
			r := client.KeyRole(*role)
			body.Role = &r
		}
		if len(endpoints) > 0 {
			list := []string(endpoints)
			body.Endpoints = &list
		}
		if *expires > 0 {
			at := time.Now().Add(*expires).UTC()
			body.ExpiresAt = &at
		}
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.CreateKeyWithResponse(ctx, body)
		created, raw, err := made(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, created, raw, func() error {
			c.tell("Key %s (%s, tenant %s). Keep it: it is not shown again.", created.Key.ID, created.Key.Kind, cmp.Or(created.Key.Tenant, "(all)"))
			return c.printf("%s\n", created.Plaintext)
		})
	}
	return c
}

func keyRotateCommand(env Env) *command {
	c := newCommand(env, "Give a key another text, and print it once", "ID")
	c.about = `
The key keeps its id, its limits and its usage. The text that it had is good for a while, too, so that clients can
change over one by one: -overlap says how long, heteroflow key retire ends it.`
	conn, out := c.withConnection(), c.withOutput()
	overlap := c.flags.Duration("overlap", 24*time.Hour, "how long the earlier text is good, up to 2160h; 0s ends it at once")
	c.run = func(ctx context.Context, args []string) error {
		if *overlap < 0 || *overlap > 90*24*time.Hour {
			return &usageError{"-overlap is no time from 0s to 2160h: write how long the earlier text is good, such as 24h"}
		}
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		seconds := int64(*overlap / time.Second)
		answer, err := service.RotateKeyWithResponse(ctx, args[0], client.KeyRotate{OverlapS: &seconds})
		rotated, raw, err := made(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, rotated, raw, func() error {
			c.tell("Key %s has a new text. Keep it: it is not shown again. The earlier one is good until %s.", rotated.Key.ID, moment(rotated.Key.PriorUntil))
			return c.printf("%s\n", rotated.Plaintext)
		})
	}
	return c
}

func keyRetireCommand(env Env) *command {
	c := newCommand(env, "End the text that a rotated key had before", "ID")
	conn := c.withConnection()
	c.run = func(ctx context.Context, args []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.RetireKeyWithResponse(ctx, args[0])
		if err := done(conn, answer, err); err != nil {
			return err
		}
		c.tell("The earlier text of key %s is refused from now on.", args[0])
		return nil
	}
	return c
}

func keyListCommand(env Env) *command {
	c := newCommand(env, "List keys, without their secrets", "")
	conn, out := c.withConnection(), c.withOutput()
	page := c.withPage()
	c.run = func(ctx context.Context, _ []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.ListKeysWithResponse(ctx, &client.ListKeysParams{Limit: page.limit, Cursor: given(*page.cursor)})
		list, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, list, raw, func() error {
			t := table{{"ID", "Kind", "Name", "Tenant", "Member", "Role", "Begins", "Endpoints", "Created", "Expires", "Last Used"}}
			for _, k := range list.Items {
				t.row(k.ID, string(k.Kind), k.Name, dash(k.Tenant), dash(k.Member), dash(k.Role), k.Prefix, dash(strings.Join(k.Endpoints, ",")),
					moment(&k.CreatedAt), dash(moment(k.ExpiresAt)), dash(moment(k.LastUsedAt)))
			}
			c.tellNext(list.NextCursor)
			return c.printf("%s", t)
		})
	}
	return c
}

func keyDeleteCommand(env Env) *command {
	c := newCommand(env, "Delete a key; it is refused from then on", "ID")
	conn := c.withConnection()
	c.run = func(ctx context.Context, args []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.DeleteKeyWithResponse(ctx, args[0])
		if err := done(conn, answer, err); err != nil {
			return err
		}
		c.tell("Key %s deleted.", args[0])
		return nil
	}
	return c
}

// page says which part of a list is wanted.
type page struct {
	limit  *int
	cursor *string
}

func (c *command) withPage() *page {
	return &page{
		limit:  c.flags.Int("limit", 100, "at most this `many`, up to 1000"),
		cursor: c.flags.String("cursor", "", "`cursor` of the next page, as the page before told it"),
	}
}

// tellNext names the next page beside the data.
func (c *command) tellNext(cursor *string) {
	if cursor != nil && *cursor != "" {
		c.tell("There is more: -cursor %s", *cursor)
	}
}
