package admission

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/collective"
	"github.com/heteroflow/heteroflow/placement-service/engine/gang"
)

// MasterPort is the label of the port at which the members of a gang meet, on the first of them.
const MasterPort = "master"

// Gang is how the gang of a job is placed and started.
type Gang struct {
	Level        string
	Mode         gang.Mode
	Framework    collective.Framework
	StartTimeout time.Duration
	OnLost       grant.OnLost
	Min          int // the fewest members that may run; 0 for all
}

// Bounds of start_timeout. Members that wait hold their cards.
const (
	defaultStart = 10 * time.Minute
	shortestWait = time.Second
	longestWait  = 24 * time.Hour
)

var (
	gangFields = []string{"framework", "level", "min", "mode", "on_lost", "start_timeout"}
	levels     = []string{"zone", "rack", "switch", gang.LevelNode, gang.LevelPart}
	modes      = []string{"preferred", string(gang.Required), string(gang.Balanced)}
	frameworks = []string{string(collective.DDP), string(collective.FSDP), string(collective.DeepSpeed), string(collective.MPI)}
)

// gangBlock is a gang block as a task has it.
type gangBlock struct {
	gang Gang
	path string
	task string
}

// readGang reads the gang block of a task, if it has one.
func (r *reader) readGang(path string, task *engine.TaskAsk, config map[string]any) {
	block, written := config["gang"]
	if !written || block == nil || task.Driver != Driver { // another driver may have a block of that name
		return
	}
	at := path + ".gang"
	if l, ok := block.([]any); ok {
		if len(l) != 1 {
			r.bad(at, "a task has one gang block, not %d", len(l))
			return
		}
		block, at = l[0], at+"[0]"
	}
	m, ok := block.(map[string]any)
	if !ok {
		r.bad(at, `%s is not a block: write gang { framework = "ddp" }, or gang { }`, show(block))
		return
	}
	if other, twice := r.gangs[r.group]; twice {
		r.bad(at, "task %q has a gang block too, and one task of a group is the member: leave out one of the two", other.task)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(gangFields, key) {
			r.bad(at+"."+key, "is not a field of the gang block: it has %s", strings.Join(gangFields, ", "))
		}
	}
	g := Gang{
		Level:     r.oneOf(at, m, "level", "", levels),
		Framework: collective.Framework(r.oneOf(at, m, "framework", frameworks[0], frameworks)),
		OnLost:    grant.OnLost(r.oneOf(at, m, "on_lost", string(grant.RestartGang), onLost())),
	}
	if mode := r.oneOf(at, m, "mode", "", modes); mode != "preferred" {
		g.Mode = gang.Mode(mode)
	}
	if g.Level == "" && g.Mode != gang.Preferred {
		r.bad(at+".mode", `mode %q is about a level: write level = "rack" beside it, or another of %s`, g.Mode, strings.Join(levels, ", "))
	}
	g.StartTimeout = r.startTimeout(at, m)
	if g.Min = int(r.number(at+".min", m["min"], 0)); g.Min < 0 {
		r.bad(at+".min", "%d is negative: write the fewest members that may run, or leave it out for all", g.Min)
	}
	if r.gangs == nil {
		r.gangs = map[string]gangBlock{}
	}
	r.gangs[r.group] = gangBlock{g, at, r.task}
}

func onLost() []string {
	var out []string
	for _, p := range grant.OnLostPolicies {
		out = append(out, string(p))
	}
	return out
}

// oneOf reads a word of a list.
func (r *reader) oneOf(path string, m map[string]any, name, otherwise string, known []string) string {
	v := m[name]
	if v == nil || v == "" {
		return otherwise
	}
	s, ok := v.(string)
	if !ok || !slices.Contains(known, s) {
		r.bad(path+"."+name, "%s is not known: write one of %s", show(v), strings.Join(known, ", "))
		return otherwise
	}
	return s
}

func (r *reader) startTimeout(path string, m map[string]any) time.Duration {
	v := m["start_timeout"]
	if v == nil || v == "" {
		return defaultStart
	}
	s, _ := v.(string)
	d, err := time.ParseDuration(s)
	if err != nil || d < shortestWait || d > longestWait {
		r.bad(path+".start_timeout", `%s is not a time from 1s to 24h: write for example start_timeout = "10m"`, show(v))
		return defaultStart
	}
	return d
}

// gather makes one gang of the groups that have a gang block.
func (r *reader) gather(job Tree, out *Reading) {
	if len(r.gangs) == 0 {
		return
	}
	first, members := "", 0
	for i := range out.Request.Groups {
		g := &out.Request.Groups[i]
		block, member := r.gangs[g.Name]
		if !member {
			continue
		}
		r.group, r.task = g.Name, block.task
		g.Gang = true
		members += max(0, g.Count)
		if first == "" {
			first = g.Name
		} else if r.gangs[first].gang != block.gang {
			r.bad(block.path, "differs from the gang block of group %q: a job has one gang, write the same in all of its groups", first)
		}
		if at := slices.IndexFunc(g.Tasks, func(t engine.TaskAsk) bool { return t.Name == block.task }); at >= 0 && g.Tasks[at].Ask == nil {
			r.bad(block.path, "the task asks for no card: write an accelerator block beside the gang block")
		}
		r.atOnce(job, out, g, block)
	}
	for _, name := range slices.Sorted(maps.Keys(r.gangs)) {
		if !slices.ContainsFunc(out.Request.Groups, func(g engine.GroupAsk) bool { return g.Name == name }) {
			r.group, r.task = name, r.gangs[name].task
			r.bad(r.gangs[name].path, "the group asks for no card: write an accelerator block beside the gang block")
		}
	}
	if first == "" {
		r.group, r.task = "", ""
		return
	}
	r.group, r.task = first, r.gangs[first].task
	block := r.gangs[first]
	if out.Request.Loose != "" {
		r.bad(block.path, "a %s job's allocations start by themselves, one without the others: write a job of type batch or service", out.Request.Loose)
	}
	if !hasPort(job, first, MasterPort) {
		r.bad(block.path, `its members meet at a port of the first one: write network { port %q {} } in group %q`, MasterPort, first)
	}
	r.group, r.task = "", ""
	g := block.gang
	r.elastic(block, members)
	out.Gang, out.Members = &g, members
	out.Request.Gang = &engine.GangAsk{Level: g.Level, Mode: g.Mode, Min: g.Min}
}

// elastic refuses an elastic gang that cannot be one.
func (r *reader) elastic(block gangBlock, members int) {
	switch g := block.gang; {
	case g.Min == 0:
	case len(r.gangs) > 1:
		r.bad(block.path+".min", "an elastic gang is one group, of which some members may be left out, and this one has %d groups with a gang block: leave out min", len(r.gangs))
	case g.Min > members:
		r.bad(block.path+".min", "at least %d of %d members cannot run: write a number up to the group's count", g.Min, members)
	case g.OnLost == grant.FailGang:
		r.bad(block.path+".on_lost", "an elastic gang goes on without members that are given up for others: write on_lost = %q or %q", grant.RestartMember, grant.RestartGang)
	}
}

// atOnce refuses a service of which Nomad would update one member after the other: the new ones would wait for each other.
func (r *reader) atOnce(job Tree, out *Reading, g *engine.GroupAsk, block gangBlock) {
	if out.Type != "service" || g.Count < 2 {
		return
	}
	parallel := int64(1) // Nomad's default
	for _, holder := range []map[string]any{job, group(job, g.Name)} {
		if n, written := integer(get(getMap(holder, "Update"), "MaxParallel")); written {
			parallel = n
		}
	}
	if parallel != 0 && parallel < int64(g.Count) {
		r.bad(block.path, "Nomad would update %d of its members at a time, which wait for the others: write update { max_parallel = 0 } in the group, or type = \"batch\" in the job", parallel)
	}
}

// group is a group of a job by its name, nil when there is none.
func group(job Tree, name string) map[string]any {
	for _, g := range objects(job, "TaskGroups") {
		if getString(g, "Name") == name {
			return g
		}
	}
	return nil
}

func hasPort(job Tree, name, label string) bool {
	for _, n := range objects(group(job, name), "Networks") {
		for _, kind := range []string{"DynamicPorts", "ReservedPorts"} {
			for _, p := range objects(n, kind) {
				if getString(p, "Label") == label {
					return true
				}
			}
		}
	}
	return false
}

// gangHash is the name of what the placement and the grants of a member depend on: the whole gang beside its own ask.
func gangHash(own string, g Gang, members int) string {
	of := []any{own, g.Level, string(g.Mode), string(g.Framework), g.StartTimeout.String(), string(g.OnLost), members}
	if g.Min > 0 {
		of = append(of, g.Min)
	}
	return sum(of)
}

// Elastic reports whether a group may run with fewer allocations than its count, and with how many at least.
func (r Reading) Elastic(group string) (least int, is bool) {
	if r.Gang == nil || r.Gang.Min == 0 {
		return 0, false
	}
	at := slices.IndexFunc(r.Request.Groups, func(g engine.GroupAsk) bool { return g.Name == group && g.Gang })
	if at < 0 {
		return 0, false
	}
	return min(r.Gang.Min, r.Request.Groups[at].Count), true
}

// Together adds to groups that need a decision those that are decided with them: all of the gang when one of it is there.
func (r Reading) Together(stale []string) []string {
	if r.Gang == nil {
		return stale
	}
	some := false
	for _, g := range r.Request.Groups {
		some = some || g.Gang && slices.Contains(stale, g.Name)
	}
	if !some {
		return stale
	}
	var out []string
	for _, g := range r.Request.Groups {
		if g.Gang || slices.Contains(stale, g.Name) {
			out = append(out, g.Name)
		}
	}
	return out
}

// grantOf is what the grant of a group's task says of the gang; nil for one that is no member.
func (r Reading) grantOf(groupName string) *grant.Gang {
	at := slices.IndexFunc(r.Request.Groups, func(g engine.GroupAsk) bool { return g.Name == groupName && g.Gang })
	if at < 0 || r.Gang == nil {
		return nil
	}
	return &grant.Gang{
		Members: r.Members, Min: r.Gang.Min, Framework: string(r.Gang.Framework), StartSeconds: int(r.Gang.StartTimeout / time.Second), OnLost: r.Gang.OnLost,
	}
}
