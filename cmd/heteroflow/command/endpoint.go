package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/api/client"
)

func endpointCreateCommand(env Env) *command {
	c := newCommand(env, "Let the gateway serve a model by a service", "MODEL SERVICE")
	c.about = `
MODEL is the name that clients send, SERVICE the service in Consul or Nomad that answers. The name goes to the service as
it is, so the engine must serve the model by it. A service that carries the tag heteroflow.model=NAME needs no endpoint.`
	conn, out := c.withConnection(), c.withOutput()
	policies := []string{"least_tokens", "prefix_cost", "least_connections", "round_robin", "random"}
	policy := c.flags.String("policy", "", "how a backend is chosen: "+strings.Join(policies, ", ")+"; the first when left out")
	tenant := c.flags.String("tenant", "", "`tenant` that owns it; your own when left out")
	c.predict["policy"] = complete.PredictSet(policies...)
	c.run = func(ctx context.Context, args []string) error {
		body := client.EndpointWrite{Model: args[0], Service: args[1], Tenant: given(*tenant)}
		if *policy != "" {
			if err := oneOf("policy", *policy, policies...); err != nil {
				return err
			}
			p := client.EndpointPolicy(*policy)
			body.Policy = &p
		}
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.CreateEndpointWithResponse(ctx, body)
		created, raw, err := made(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, created, raw, func() error { return c.printf("%s\n", created.ID) })
	}
	return c
}

func endpointListCommand(env Env) *command {
	c := newCommand(env, "List the models that the gateway serves by name", "")
	conn, out := c.withConnection(), c.withOutput()
	page := c.withPage()
	c.run = func(ctx context.Context, _ []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		answer, err := service.ListEndpointsWithResponse(ctx, &client.ListEndpointsParams{Limit: page.limit, Cursor: given(*page.cursor)})
		list, raw, err := read(conn, answer, err)
		if err != nil {
			return err
		}
		return c.print(out, list, raw, func() error {
			t := table{{"ID", "Model", "Service", "Policy", "Tenant", "Created"}}
			for _, e := range list.Items {
				t.row(e.ID, e.Model, e.Service, string(e.Policy), e.Tenant, moment(&e.CreatedAt))
			}
			c.tellNext(list.NextCursor)
			return c.printf("%s", t)
		})
	}
	return c
}

func endpointDeleteCommand(env Env) *command {
	c := newCommand(env, "Delete an endpoint", "ID")
	conn := c.withConnection()
	c.run = func(ctx context.Context, args []string) error {
		service, err := c.service(conn)
		if err != nil {
			return err
		}
		found, err := service.GetEndpointWithResponse(ctx, args[0])
		endpoint, _, err := read(conn, found, err)
		if err != nil {
			return err
		}
		answer, err := service.DeleteEndpointWithResponse(ctx, args[0])
		if err := done(conn, answer, err); err != nil {
			return fmt.Errorf("delete endpoint %s: %w", args[0], err)
		}
		c.tell("Endpoint %s of model %s deleted.", args[0], endpoint.Model)
		return nil
	}
	return c
}
