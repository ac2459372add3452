package nomadhttp

import (
	"maps"
	"net/http"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

func (q *request) services() (any, error) {
	if err := q.only(http.MethodGet); err != nil {
		return nil, err
	}
	return q.read(func(r state.Reader) (any, uint64, error) {
		tags := map[string]map[string][]string{}
		for _, s := range r.Services() {
			if q.namespace() != "*" && s.Namespace != q.namespace() {
				continue
			}
			if tags[s.Namespace] == nil {
				tags[s.Namespace] = map[string][]string{}
			}
			known := tags[s.Namespace][s.ServiceName]
			for _, t := range s.Tags {
				if !slices.Contains(known, t) {
					known = append(known, t)
				}
			}
			tags[s.Namespace][s.ServiceName] = list(known)
		}
		out := []*api.ServiceRegistrationListStub{}
		for _, ns := range slices.Sorted(maps.Keys(tags)) {
			entry := &api.ServiceRegistrationListStub{Namespace: ns}
			for _, name := range slices.Sorted(maps.Keys(tags[ns])) {
				slices.Sort(tags[ns][name])
				entry.Services = append(entry.Services, &api.ServiceRegistrationStub{ServiceName: name, Tags: tags[ns][name]})
			}
			out = append(out, entry)
		}
		return out, r.TableIndex("services", ""), nil
	})
}

func (q *request) service() (any, error) {
	name := q.path[1]
	switch {
	case len(q.path) == 2 && q.get():
		return q.read(func(r state.Reader) (any, uint64, error) {
			return list(r.ServicesByName(q.namespace(), name)), r.TableIndex("services", state.JobKey(q.namespace(), name)), nil
		})
	case len(q.path) == 3 && q.r.Method == http.MethodDelete:
		index, err := q.Core.DeleteService(q.namespace(), name, q.path[2])
		if err != nil {
			return nil, err
		}
		q.indexed(index)
		return nil, nil
	case len(q.path) > 3:
		return q.notHere()
	}
	return nil, errMethod
}
