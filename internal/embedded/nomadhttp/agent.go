package nomadhttp

import (
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/core"
	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

// The version of Nomad's API that is spoken, with a mark that this is not Nomad.
const (
	apiVersion  = "2.0.5"
	versionMark = "heteroflow"
)

func (q *request) hostPort() (host, port string) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(q.Addr(), "http://"))
	if err != nil {
		return "127.0.0.1", "4646"
	}
	return host, port
}

func (q *request) agentSelf() (any, error) {
	host, port := q.hostPort()
	stats := map[string]any{"nomad": map[string]string{"server": "true", "leader": "true", "known_regions": "1", "bootstrap": "true"}}
	local := q.Local()
	if local != "" {
		stats["client"] = map[string]string{"node_id": local, "known_servers": net.JoinHostPort(host, port)}
	}
	return map[string]any{
		"config": map[string]any{
			"ACL": map[string]any{"Enabled": false}, "BindAddr": host, "Datacenter": "dc1", "NodeName": q.Name, "Region": "global",
			"DevMode": true, "Client": map[string]any{"Enabled": local != ""}, "Server": map[string]any{"Enabled": true},
			"AdvertiseAddrs": map[string]any{"HTTP": net.JoinHostPort(host, port)}, "UI": map[string]any{"Enabled": false, "ShowCLIHints": false},
			"Version": map[string]any{"Version": apiVersion, "VersionPrerelease": "", "VersionMetadata": versionMark, "Revision": ""},
		},
		"member": q.member(), "stats": stats,
	}, nil
}

func (q *request) member() map[string]any {
	host, port := q.hostPort()
	return map[string]any{
		"Name": q.Name + ".global", "Addr": host, "Port": 0, "Status": "alive", "ProtocolMin": 1, "ProtocolMax": 5, "ProtocolCur": 2,
		"DelegateMin": 2, "DelegateMax": 5, "DelegateCur": 4,
		"Tags": map[string]string{
			"role": "nomad", "region": "global", "dc": "dc1", "build": apiVersion + "+" + versionMark, "bootstrap": "1", "expect": "1",
			"rpc_addr": host, "port": port, "raft_vsn": "3", "vsn": "1",
		},
	}
}

func (q *request) agentMembers() (any, error) {
	return map[string]any{"ServerName": q.Name, "ServerRegion": "global", "ServerDC": "dc1", "Members": []any{q.member()}}, nil
}

func (q *request) agentServers() (any, error) {
	host, port := q.hostPort()
	return []string{net.JoinHostPort(host, port)}, nil
}

func (q *request) agentHealth() (any, error) {
	ok := map[string]any{"ok": true, "message": "ok"}
	return map[string]any{"server": ok, "client": ok}, nil
}

func (q *request) leader() (any, error) {
	host, port := q.hostPort()
	return net.JoinHostPort(host, port), nil
}

func (q *request) peers() (any, error)   { return q.agentServers() }
func (q *request) regions() (any, error) { return []string{"global"}, nil }

func defaultNamespace() map[string]any {
	return map[string]any{
		"Name": api.DefaultNamespace, "Description": "Default shared namespace", "Quota": "", "Meta": nil, "Capabilities": nil,
		"NodePoolConfiguration": nil, "CreateIndex": 1, "ModifyIndex": 1,
	}
}

func (q *request) namespaces() (any, error) {
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	return q.read(func(state.Reader) (any, uint64, error) { return []any{defaultNamespace()}, 1, nil })
}

func (q *request) namespaceInfo() (any, error) {
	if !q.get() {
		return nil, core.Beyond("the embedded engine has the namespace %q only; Nomad has more", api.DefaultNamespace)
	}
	if q.path[1] != api.DefaultNamespace {
		return nil, core.NotFound("Namespace not found")
	}
	return q.read(func(state.Reader) (any, uint64, error) { return defaultNamespace(), 1, nil })
}

func poolInfo(name, description string) map[string]any {
	return map[string]any{"Name": name, "Description": description, "Meta": nil, "SchedulerConfiguration": nil, "CreateIndex": 1, "ModifyIndex": 1}
}

// pools are Nomad's own two and those that nodes say they are in.
func pools(r state.Reader) []map[string]any {
	out := []map[string]any{poolInfo("all", "Node pool with all nodes in the cluster."), poolInfo("default", "Default node pool.")}
	seen := map[string]bool{"all": true, "default": true}
	for _, n := range r.Nodes() {
		if !seen[n.NodePool] {
			seen[n.NodePool] = true
			out = append(out, poolInfo(n.NodePool, ""))
		}
	}
	return out
}

func (q *request) nodePools() (any, error) {
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	return q.read(func(r state.Reader) (any, uint64, error) { return pools(r), r.TableIndex("nodes", ""), nil })
}

func (q *request) nodePool() (any, error) {
	if !q.get() {
		return nil, core.Beyond("node pools of the embedded engine are what its nodes say; Nomad lets you make them")
	}
	return q.read(func(r state.Reader) (any, uint64, error) {
		name := q.path[len(q.path)-1]
		for _, p := range pools(r) {
			if p["Name"] == name {
				return p, 1, nil
			}
		}
		return nil, 0, core.NotFound("node pool not found")
	})
}

func (q *request) schedulerConfiguration() (any, error) {
	cfg, index := q.Core.SchedulerConfig()
	if q.get() {
		q.indexed(index)
		return map[string]any{"SchedulerConfig": cfg, "Index": index, "KnownLeader": true, "LastContact": 0, "NextToken": ""}, nil
	}
	if err := q.only(http.MethodPut); err != nil {
		return nil, err
	}
	next := api.SchedulerConfiguration{}
	if err := q.decode(&next); err != nil {
		return nil, err
	}
	switch next.SchedulerAlgorithm {
	case "":
		next.SchedulerAlgorithm = cfg.SchedulerAlgorithm
	case api.SchedulerAlgorithmBinpack, api.SchedulerAlgorithmSpread:
	default:
		return nil, core.Bad("invalid scheduler algorithm %q: write binpack or spread", next.SchedulerAlgorithm)
	}
	if p := next.PreemptionConfig; p.SystemSchedulerEnabled || p.ServiceSchedulerEnabled || p.BatchSchedulerEnabled || p.SysBatchSchedulerEnabled {
		return nil, core.Beyond("the embedded engine preempts nothing: leave PreemptionConfig out, or use Nomad")
	}
	index = q.Core.SetSchedulerConfig(next)
	q.indexed(index)
	return map[string]any{"Updated": true, "Index": index}, nil
}

// aclSelf is what Nomad answers without ACLs.
func (q *request) aclSelf() (any, error) {
	return map[string]any{
		"AccessorID": "acls-disabled", "SecretID": "", "Name": "ACLs disabled token", "Type": "client", "Policies": nil, "Roles": nil,
		"Global": false, "Hash": nil, "CreateTime": time.Time{}, "ExpirationTime": nil, "ExpirationTTL": "", "CreateIndex": 0, "ModifyIndex": 0,
	}, nil
}

func (q *request) systemGC() (any, error) {
	if err := q.only(http.MethodPut); err != nil {
		return nil, err
	}
	return nil, q.Core.Collect(true)
}

// search finds what starts with a text, in the contexts the command line asks for.
func (q *request) search() (any, error) {
	if err := q.only(http.MethodPut); err != nil {
		return nil, err
	}
	var req struct{ Prefix, Context string }
	if err := q.decode(&req); err != nil {
		return nil, err
	}
	const most = 20
	matches, truncated := map[string][]string{}, map[string]bool{}
	find := func(context, id string) {
		if (req.Context != "" && req.Context != "all" && req.Context != context) || !strings.HasPrefix(id, req.Prefix) {
			return
		}
		if len(matches[context]) == most {
			truncated[context] = true
			return
		}
		matches[context] = append(matches[context], id)
	}
	var index uint64
	q.Core.Store().View(func(r state.Reader) {
		index = r.Index()
		for _, j := range r.Jobs(q.namespace()) {
			find("jobs", *j.ID)
		}
		for _, e := range r.Evals() {
			find("evals", e.ID)
		}
		for _, a := range r.Allocs() {
			find("allocs", a.ID)
		}
		for _, n := range r.Nodes() {
			find("nodes", n.ID)
		}
		for _, d := range r.Deployments() {
			find("deployment", d.ID)
		}
	})
	q.indexed(index)
	return map[string]any{"Matches": matches, "Truncations": truncated}, nil
}
