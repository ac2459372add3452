package nomadapi

import (
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestAllocOfService(t *testing.T) {
	t.Parallel()
	const alloc = "0b2c5b8e-2b2f-4d5c-9d2a-5a3b1c0d9e8f"
	for id, want := range map[string]string{
		"_nomad-task-" + alloc + "-vllm-llm-http":            alloc,
		"_nomad-task-" + alloc + "-group-serve-llm-http":     alloc,
		"_nomad-task-" + alloc:                               "",
		"_nomad-task-" + alloc + "0-x":                       "",
		"_nomad-task-0B2C5B8E-2b2f-4d5c-9d2a-5a3b1c0d9e8f-x": "",
		"_nomad-task-0b2c5b8e02b2f-4d5c-9d2a-5a3b1c0d9e8f-x": "",
		"by-hand": "", "": "", "_nomad-task-": "", "_nomad-server-abc": "", "_nomad-task-11111111-2222": "",
	} {
		if got := AllocOfService(id); got != want {
			t.Errorf("%q: %q", id, got)
		}
	}
}

func TestRegisters(t *testing.T) {
	t.Parallel()
	name := "serve"
	group := &api.TaskGroup{
		Name: &name, Services: []*api.Service{{Name: "llm"}, {}, {Name: "${JOB}-${TASKGROUP}-x"}},
		Tasks: []*api.Task{{Name: "vllm", Services: []*api.Service{{}, {Name: "${TASK}"}, {Name: "${BASE}-2"}}}},
	}
	want := []string{"llm", "j-serve", "j-serve-x", "j-serve-vllm", "vllm", "j-serve-vllm-2"}
	if got := Registers("j", group); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := Registers("j", &api.TaskGroup{}); got != nil {
		t.Errorf("%q", got)
	}
}
