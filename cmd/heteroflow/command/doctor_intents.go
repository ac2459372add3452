package command

import (
	"context"
	"fmt"

	"github.com/heteroflow/heteroflow/api/client"
)

// checkIntents looks for nodes whose device plugin does not do what is wanted of their cards, before a job waits for it.
func (c *command) checkIntents(ctx context.Context, conn *connection) []finding {
	service, err := c.service(conn)
	if err != nil {
		return nil // told by checkService
	}
	answer, err := service.ListNodesWithResponse(ctx)
	if err != nil || answer.JSON200 == nil {
		return nil // told by checkService
	}
	list := answer.JSON200
	var all []finding
	if stale := text(list.Stale); stale != "" {
		all = append(all, warn("nodes", "have Nomad answer the placement service first", "may be others by now: %s", stale))
	}
	for _, node := range list.Items {
		if node.Intents != nil && node.Ready {
			all = append(all, intentFindings("node "+node.Name, node.Intents)...)
		}
	}
	return all
}

func intentFindings(name string, in *client.NodeIntents) []finding {
	var all []finding
	if in.Fetched != nil && !*in.Fetched {
		all = append(all, warn(name, `write server, the address of the placement service, and token, what "heteroflow key create -kind node NAME" prints, into the block of heteroflow-device there; its log says "intents cannot be followed" and why`,
			"its device plugin does not fetch intents, so that cards are neither opened nor closed for shares: %s", text(in.Reason)))
	}
	const most = 3
	for i, f := range in.Failed {
		if i == most {
			all = append(all, warn(name, "", "%d more cards could not change their form", len(in.Failed)-most))
			break
		}
		all = append(all, warn(name, fmt.Sprintf("mend it there; the card is asked again at %s", moment(&f.RetryAt)),
			"card %s could not change its form to %s at %s: %s", f.CardUUID, f.Form, moment(&f.FailedAt), f.Reason))
	}
	return all
}
