package client

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// taskPaths are the folders of a task as the task itself sees them.
type taskPaths struct{ alloc, local, secrets string }

// pathsFor answers by the driver's isolation: an image has its folders at fixed places, everything else sees the host.
func pathsFor(d allocDir, task string, fs driverpb.DriverCapabilities_FSIsolation) taskPaths {
	if fs == driverpb.DriverCapabilities_IMAGE || fs == driverpb.DriverCapabilities_CHROOT {
		return taskPaths{"/alloc", "/local", "/secrets"}
	}
	return taskPaths{d.shared(), d.local(task), d.secrets(task)}
}

// hostPath is where a path of the task lies on the host.
func (p taskPaths) hostPath(d allocDir, task, path string) string {
	for _, m := range []struct{ inside, host string }{{p.alloc, d.shared()}, {p.local, d.local(task)}, {p.secrets, d.secrets(task)}} {
		if path == m.inside || strings.HasPrefix(path, m.inside+"/") {
			return m.host + strings.TrimPrefix(path, m.inside)
		}
	}
	return d.task(task) + "/" + path
}

// nomadEnv is what Nomad tells every task about itself.
func nomadEnv(alloc *api.Allocation, tg *api.TaskGroup, task *api.Task, conf NodeConfig, paths taskPaths) map[string]string {
	job := alloc.Job
	env := map[string]string{
		"NOMAD_ALLOC_DIR": paths.alloc, "NOMAD_TASK_DIR": paths.local, "NOMAD_SECRETS_DIR": paths.secrets,
		"NOMAD_ALLOC_ID": alloc.ID, "NOMAD_SHORT_ALLOC_ID": alloc.ID[:min(8, len(alloc.ID))], "NOMAD_ALLOC_NAME": alloc.Name,
		"NOMAD_ALLOC_INDEX": allocIndex(alloc.Name), "NOMAD_TASK_NAME": task.Name, "NOMAD_GROUP_NAME": alloc.TaskGroup,
		"NOMAD_JOB_ID": alloc.JobID, "NOMAD_JOB_NAME": deref(job.Name, alloc.JobID), "NOMAD_NAMESPACE": alloc.Namespace,
		"NOMAD_DC": conf.Datacenter, "NOMAD_REGION": deref(job.Region, "global"),
	}
	if parent := deref(job.ParentID, ""); parent != "" {
		env["NOMAD_JOB_PARENT_ID"] = parent
	}
	if r := taskResources(alloc, task.Name); r != nil {
		env["NOMAD_CPU_LIMIT"] = strconv.FormatInt(r.Cpu.CpuShares, 10)
		env["NOMAD_MEMORY_LIMIT"] = strconv.FormatInt(r.Memory.MemoryMB, 10)
		if r.Memory.MemoryMaxMB > 0 {
			env["NOMAD_MEMORY_MAX_LIMIT"] = strconv.FormatInt(r.Memory.MemoryMaxMB, 10)
		}
	}
	for _, p := range allocPorts(alloc, conf.HostIP) {
		inside := p.Value
		if p.To > 0 {
			inside = p.To
		}
		host := fmt.Sprintf("%s:%d", p.HostIP, p.Value)
		env["NOMAD_IP_"+p.Label], env["NOMAD_HOST_IP_"+p.Label] = p.HostIP, p.HostIP
		env["NOMAD_PORT_"+p.Label] = strconv.Itoa(inside)
		env["NOMAD_HOST_PORT_"+p.Label] = strconv.Itoa(p.Value)
		env["NOMAD_ADDR_"+p.Label], env["NOMAD_HOST_ADDR_"+p.Label] = host, host
	}
	for _, meta := range []map[string]string{job.Meta, tg.Meta, task.Meta} {
		for k, v := range meta {
			key := cleanEnvKey(k)
			env["NOMAD_META_"+key], env["NOMAD_META_"+strings.ToUpper(key)] = v, v
		}
	}
	return env
}

// allocIndex is the number in brackets at the end of an allocation's name.
func allocIndex(name string) string {
	open := strings.LastIndexByte(name, '[')
	if open < 0 || !strings.HasSuffix(name, "]") {
		return ""
	}
	return name[open+1 : len(name)-1]
}

var notEnvKey = regexp.MustCompile(`[^a-zA-Z0-9_]`)

func cleanEnvKey(k string) string { return notEnvKey.ReplaceAllString(k, "_") }

func taskResources(alloc *api.Allocation, task string) *api.AllocatedTaskResources {
	if alloc.AllocatedResources == nil {
		return nil
	}
	return alloc.AllocatedResources.Tasks[task]
}

// allocPorts lists the ports of the allocation, each with an address.
func allocPorts(alloc *api.Allocation, hostIP string) []api.PortMapping {
	r := alloc.AllocatedResources
	if r == nil {
		return nil
	}
	var out []api.PortMapping
	seen := map[string]bool{}
	add := func(p api.PortMapping) {
		if p.HostIP == "" {
			p.HostIP = hostIP
		}
		if !seen[p.Label] {
			seen[p.Label] = true
			out = append(out, p)
		}
	}
	for _, p := range r.Shared.Ports {
		add(p)
	}
	networks := r.Shared.Networks
	for _, t := range r.Tasks {
		networks = append(networks[:len(networks):len(networks)], t.Networks...)
	}
	for _, n := range networks {
		for _, ports := range [][]api.Port{n.ReservedPorts, n.DynamicPorts} {
			for _, p := range ports {
				add(api.PortMapping{Label: p.Label, Value: p.Value, To: p.To, HostIP: n.IP})
			}
		}
	}
	return out
}

// hiddenHostEnv matches variables of the engine's own environment that no task inherits: credentials, and what would
// make a task speak with the engine's rights.
var hiddenHostEnv = regexp.MustCompile(`(?i)^(NOMAD_|CONSUL_|VAULT_|HETEROFLOW_|AWS_|PLUGIN_|DATABASE_URL$|GOOGLE_APPLICATION_CREDENTIALS$|PG[A-Z]+$)|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|(_|^)KEY$`)

// hostEnv is what a task without isolation inherits.
func hostEnv() map[string]string {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		if k, v, ok := strings.Cut(kv, "="); ok && !hiddenHostEnv.MatchString(k) {
			env[k] = v
		}
	}
	return env
}

// interpolator replaces ${…} by what a node and a task's environment hold. Text it does not know stays as it is.
type interpolator struct {
	node *api.Node
	env  map[string]string
}

var reference = regexp.MustCompile(`\$?\$\{[^{}]*\}`)

func (i interpolator) text(s string) string {
	if !strings.Contains(s, "${") {
		return s
	}
	return reference.ReplaceAllStringFunc(s, func(ref string) string {
		if strings.HasPrefix(ref, "$$") {
			return ref[1:]
		}
		if v, ok := i.lookup(strings.TrimSpace(ref[2 : len(ref)-1])); ok {
			return v
		}
		return ref
	})
}

func (i interpolator) lookup(name string) (string, bool) {
	switch name {
	case "node.unique.id":
		return i.node.ID, true
	case "node.unique.name":
		return i.node.Name, true
	case "node.datacenter":
		return i.node.Datacenter, true
	case "node.class":
		return i.node.NodeClass, true
	case "node.pool":
		return i.node.NodePool, true
	case "node.region":
		return i.env["NOMAD_REGION"], true
	}
	if key, ok := strings.CutPrefix(name, "attr."); ok {
		v, ok := i.node.Attributes[key]
		return v, ok
	}
	if key, ok := strings.CutPrefix(name, "meta."); ok {
		v, ok := i.node.Meta[key]
		return v, ok
	}
	if key, ok := strings.CutPrefix(name, `env["`); ok {
		name = strings.TrimSuffix(key, `"]`)
	} else if key, ok := strings.CutPrefix(name, "env."); ok {
		name = key
	}
	v, ok := i.env[name]
	return v, ok
}

// value replaces in every text of a config tree.
func (i interpolator) value(v any) any {
	switch v := v.(type) {
	case string:
		return i.text(v)
	case []any:
		out := make([]any, len(v))
		for n, e := range v {
			out[n] = i.value(e)
		}
		return out
	case []string:
		out := make([]any, len(v))
		for n, e := range v {
			out[n] = i.text(e)
		}
		return out
	case []map[string]any:
		out := make([]any, len(v))
		for n, e := range v {
			out[n] = i.value(e)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[i.text(k)] = i.value(e)
		}
		return out
	case map[string]string:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[i.text(k)] = i.text(e)
		}
		return out
	}
	return v
}

// taskEnv builds a task's environment. Later wins: the host's, Nomad's own, the job's, the devices', the templates'.
// User values may refer to everything before them.
func taskEnv(host, nomad, user, device, template map[string]string, node *api.Node) map[string]string {
	env := maps.Clone(nomad)
	for k, v := range host {
		if _, ok := env[k]; !ok {
			env[k] = v
		}
	}
	in := interpolator{node: node, env: maps.Clone(env)}
	for k, v := range user {
		env[in.text(k)] = in.text(v)
	}
	maps.Copy(env, device)
	maps.Copy(env, template)
	return env
}
