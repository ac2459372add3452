package nomadapi

import (
	"strings"

	"github.com/hashicorp/nomad/api"
)

// serviceOf is how the id begins that Nomad gives to what it registers, before the allocation's. Source: Nomad's
// serviceregistration, MakeAllocServiceID.
const serviceOf = "_nomad-task-"

// allocLength is that of an allocation's id, a UUID.
const allocLength = 36

// AllocOfService is the allocation of an instance of a service by the id that it has in Consul or in Nomad's registry;
// empty when something else than Nomad registered it.
func AllocOfService(id string) string {
	rest, ok := strings.CutPrefix(id, serviceOf)
	if !ok || len(rest) <= allocLength || rest[allocLength] != '-' {
		return ""
	}
	for i, c := range []byte(rest[:allocLength]) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (c == '-') || !dash && !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return ""
		}
	}
	return rest[:allocLength]
}

// Registers lists the names of the services that a group of a job registers.
func Registers(job string, group *api.TaskGroup) []string {
	var names []string
	name := ""
	if group.Name != nil {
		name = *group.Name
	}
	add := func(task string, services []*api.Service) {
		for _, s := range services {
			names = append(names, serviceName(s.Name, job, name, task))
		}
	}
	add("", group.Services)
	for _, t := range group.Tasks {
		add(t.Name, t.Services)
	}
	return names
}

// serviceName fills in what Nomad fills into a service's name, and gives the name that Nomad takes where there is none.
// Source: Nomad's job specification, service, name.
func serviceName(name, job, group, task string) string {
	if name == "" && task == "" {
		name = "${JOB}-${GROUP}"
	} else if name == "" {
		name = "${BASE}"
	}
	name = strings.ReplaceAll(name, "${BASE}", "${JOB}-${GROUP}-${TASK}")
	return strings.NewReplacer("${JOB}", job, "${TASKGROUP}", group, "${GROUP}", group, "${TASK}", task).Replace(name)
}
