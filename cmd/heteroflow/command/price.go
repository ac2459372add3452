package command

import (
	"context"

	"github.com/heteroflow/heteroflow/api/client"
)

func priceSetCommand(env Env) *command {
	c := newCommand(env, "Set what a model costs, for budgets of money", "MODEL")
	c.about = `
MODEL is the name that clients send. Prices take the place of those that the model had, in a unit of money that is yours
to choose: it is the same for all prices and budgets.`
	conn, out := c.withConnection(), c.withOutput()
	prompt := c.numberFlag("prompt", "`price` of a million tokens of prompts; nothing when left out")
	cached := c.numberFlag("cached", "`price` of a million of them that the engine had in its cache; as -prompt when left out")
	completion := c.numberFlag("completion", "`price` of a million tokens of answers; nothing when left out")
	request := c.numberFlag("request", "`price` of one request; nothing when left out")
	c.run = func(ctx context.Context, args []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.SetPriceWithResponse(ctx, client.PriceWrite{Model: args[0], Prompt: *prompt, Cached: *cached, Completion: *completion, Request: *request})
		price, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, price, raw, func() error { return c.printf("%s", priceTable([]client.Price{*price})) })
	}
	return c
}

func priceTable(list []client.Price) table {
	t := table{{"Model", "Prompt/1M", "Cached/1M", "Completion/1M", "Request", "Set"}}
	for _, p := range list {
		t.row(p.Model, amount(&p.Prompt), amount(&p.Cached), amount(&p.Completion), amount(&p.Request), moment(&p.UpdatedAt))
	}
	return t
}

func priceListCommand(env Env) *command {
	c := newCommand(env, "List what models cost", "")
	conn, out := c.withConnection(), c.withOutput()
	page := c.withPage()
	c.run = func(ctx context.Context, _ []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.ListPricesWithResponse(ctx, &client.ListPricesParams{Limit: page.limit, Cursor: given(*page.cursor)})
		list, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, list, raw, func() error {
			c.tellNext(list.NextCursor)
			return c.printf("%s", priceTable(list.Items))
		})
	}
	return c
}

func priceDeleteCommand(env Env) *command {
	c := newCommand(env, "Delete what a model costs", "MODEL")
	conn := c.withConnection()
	c.run = func(ctx context.Context, args []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.DeletePriceWithResponse(ctx, &client.DeletePriceParams{Model: args[0]})
		if err := done(conn, answer, err); err != nil {
			return err
		}
		c.tell("Price of %s deleted.", args[0])
		return nil
	}
	return c
}
