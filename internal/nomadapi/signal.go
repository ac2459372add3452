package nomadapi

import (
	"context"
	"fmt"
	"net/url"
)

// SignalAlloc sends a signal, such as SIGUSR1, to a task of an allocation, or to all of its tasks when task is empty.
// Nomad's server passes it on to the node. IsNotFound reports that there is no such allocation.
func (c *Client) SignalAlloc(ctx context.Context, namespace, id, task, signal string) error {
	body := map[string]string{"Task": task, "Signal": signal}
	path := "/v1/client/allocation/" + url.PathEscape(id) + "/signal"
	if _, err := c.api.Raw().Write(path, body, nil, write(ctx, namespace)); err != nil {
		return fmt.Errorf("send %s to allocation %s: %w", signal, id, err)
	}
	return nil
}

// RestartAlloc ends the running tasks of an allocation and starts them again in their place. Nomad's server passes it on
// to the node. IsNotFound reports that there is no such allocation.
func (c *Client) RestartAlloc(ctx context.Context, namespace, id string) error {
	path := "/v1/client/allocation/" + url.PathEscape(id) + "/restart"
	if _, err := c.api.Raw().Write(path, map[string]string{}, nil, write(ctx, namespace)); err != nil {
		return fmt.Errorf("restart allocation %s: %w", id, err)
	}
	return nil
}
