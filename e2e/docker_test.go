package e2e

import (
	"context"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
)

// containers lists the containers of an allocation, stopped ones too; of every task of ours when alloc is empty.
func (s *suite) containers(alloc string) []container.Summary {
	s.t.Helper()
	docker, err := client.NewClientWithOpts(client.WithHost(s.Docker), client.WithAPIVersionNegotiation())
	if err != nil {
		s.t.Fatal(err)
	}
	defer docker.Close()
	label := "io.heteroflow.task_id"
	if alloc != "" {
		label = "com.hashicorp.nomad.alloc_id=" + alloc
	}
	list, err := docker.ContainerList(context.Background(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}
