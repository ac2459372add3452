package nomadapi

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// transientSigns are what the 500 answers hold that are about the cluster, or about the machine it runs on, and not
// about the request.
var transientSigns = []string{
	"No cluster leader", "No path to region", "rpc error", "leadership lost", "EOF", "connection refused", "not ready to serve",
	"no space left on device", "read-only file system", "input/output error", "too many open files",
}

// transient tells the 500 answers that are about the cluster from those about the request.
func transient(text string) bool {
	for _, sign := range transientSigns {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

// Nodes lists the nodes without their devices. With an index it waits until something changed or wait passed.
// The second result is the index to wait for next; it may be lower than the one given after Nomad was reset.
func (c *Client) Nodes(ctx context.Context, index uint64, wait time.Duration) ([]*api.NodeListStub, uint64, error) {
	var out []*api.NodeListStub
	meta, err := c.api.Raw().Query("/v1/nodes", &out, blocking(ctx, "", index, wait))
	if err != nil {
		return nil, 0, fmt.Errorf("list nodes: %w", err)
	}
	return out, meta.LastIndex, nil
}

// Node fetches one node with its attributes and devices.
func (c *Client) Node(ctx context.Context, id string) (*api.Node, error) {
	var out api.Node
	if _, err := c.api.Raw().Query("/v1/node/"+url.PathEscape(id), &out, query(ctx, "")); err != nil {
		return nil, fmt.Errorf("get node %s: %w", id, err)
	}
	return &out, nil
}

// HostStats is what a node measures of itself and of its devices now. Nomad's server asks the node.
func (c *Client) HostStats(ctx context.Context, nodeID string) (*api.HostStats, error) {
	var out api.HostStats
	if _, err := c.api.Raw().Query("/v1/client/stats?node_id="+url.QueryEscape(nodeID), &out, query(ctx, "")); err != nil {
		return nil, fmt.Errorf("get statistics of node %s: %w", nodeID, err)
	}
	return &out, nil
}

// Allocs lists the allocations of every namespace with their resources, and the index the list is true for.
func (c *Client) Allocs(ctx context.Context) ([]*api.AllocationListStub, uint64, error) {
	var out []*api.AllocationListStub
	meta, err := c.api.Raw().Query("/v1/allocations?resources=true", &out, query(ctx, AllNamespaces))
	if err != nil {
		return nil, 0, fmt.Errorf("list allocations: %w", err)
	}
	return out, meta.LastIndex, nil
}

// Alloc fetches one allocation. IsNotFound reports that there is none.
func (c *Client) Alloc(ctx context.Context, namespace, id string) (*api.Allocation, error) {
	var out api.Allocation
	if _, err := c.api.Raw().Query("/v1/allocation/"+url.PathEscape(id), &out, query(ctx, namespace)); err != nil {
		return nil, fmt.Errorf("get allocation %s: %w", id, err)
	}
	return &out, nil
}

// Belongs names the job that an object of Nomad's is of.
type Belongs struct{ Namespace, JobID string }

// Owner finds the job of an allocation, an evaluation or a deployment. IsNotFound reports that there is no such object.
func (c *Client) Owner(ctx context.Context, kind, id string) (Belongs, error) {
	var out Belongs
	if _, err := c.api.Raw().Query("/v1/"+kind+"/"+url.PathEscape(id), &out, query(ctx, "")); err != nil {
		return out, fmt.Errorf("get %s %s: %w", kind, id, err)
	}
	return out, nil
}

// Jobs lists the jobs of every namespace.
func (c *Client) Jobs(ctx context.Context) ([]*api.JobListStub, error) {
	var out []*api.JobListStub
	if _, err := c.api.Raw().Query("/v1/jobs", &out, query(ctx, AllNamespaces)); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	return out, nil
}

// Evaluations lists the evaluations of a job.
func (c *Client) Evaluations(ctx context.Context, namespace, id string) ([]*api.Evaluation, error) {
	var out []*api.Evaluation
	if _, err := c.api.Raw().Query(jobPath(id, "/evaluations"), &out, query(ctx, namespace)); err != nil {
		return nil, fmt.Errorf("list evaluations of job %s: %w", id, err)
	}
	return out, nil
}

// OpenEvaluations lists the evaluations of every namespace that are not finished: pending and blocked ones.
func (c *Client) OpenEvaluations(ctx context.Context) ([]*api.Evaluation, error) {
	var out []*api.Evaluation
	if _, err := c.api.Raw().Query("/v1/evaluations", &out, query(ctx, AllNamespaces)); err != nil {
		return nil, fmt.Errorf("list evaluations: %w", err)
	}
	return slices.DeleteFunc(out, func(e *api.Evaluation) bool { return e.Status != "pending" && e.Status != "blocked" }), nil
}

// Evaluation fetches one evaluation.
func (c *Client) Evaluation(ctx context.Context, namespace, id string) (*api.Evaluation, error) {
	var out api.Evaluation
	if _, err := c.api.Raw().Query("/v1/evaluation/"+url.PathEscape(id), &out, query(ctx, namespace)); err != nil {
		return nil, fmt.Errorf("get evaluation %s: %w", id, err)
	}
	return &out, nil
}
