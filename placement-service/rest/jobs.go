package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/api"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// nomadTimeout is how long Nomad may take to add to an answer that is complete without it.
const nomadTimeout = 3 * time.Second

// tenantOf is whose a job is, empty when nobody's.
func (s *server) tenantOf(ctx context.Context, key watch.JobKey) (string, error) {
	job, err := s.Store.Job(ctx, key.Namespace, key.ID)
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	return job.Tenant, err
}

// findJob is a job that the caller may see.
func (s *server) findJob(ctx context.Context, namespace *string, id string) (store.Job, error) {
	ns := cmp.Or(val(namespace), "default")
	job, err := s.Store.Job(ctx, ns, id)
	if tenant := whoOf(ctx).Tenant; err == nil && tenant != "" && tenant != job.Tenant {
		err = fmt.Errorf("job %s/%s: %w", ns, id, store.ErrNotFound)
	}
	return job, err
}

// ListJobs lists what came through the service.
func (s *server) ListJobs(ctx context.Context, r api.ListJobsRequestObject) (api.ListJobsResponseObject, error) {
	filter := store.JobFilter{Tenant: whoOf(ctx).Tenant, State: string(val(r.Params.State)), Prefix: val(r.Params.Prefix)}
	jobs, next, err := s.Store.ListJobs(ctx, filter, pageOf(r.Params.Limit, r.Params.Cursor))
	if err != nil {
		return nil, err
	}
	positions, err := s.positions(ctx)
	if err != nil {
		return nil, err
	}
	status := s.nomadStatus(ctx)
	out := api.ListJobs200JSONResponse{Items: []api.Job{}, NextCursor: ref(next)}
	for _, job := range jobs {
		item := s.jobOf(job, positions)
		item.NomadStatus = ref(status[watch.JobKey{Namespace: job.Namespace, ID: job.ID}])
		out.Items = append(out.Items, item)
	}
	return out, nil
}

func pageOf(limit *int, cursor *string) store.Page {
	return store.Page{Limit: cmp.Or(val(limit), 100), Cursor: val(cursor)}
}

// nomadStatus is Nomad's word for every job; empty when it cannot be asked.
func (s *server) nomadStatus(ctx context.Context) map[watch.JobKey]string {
	ctx, cancel := context.WithTimeout(ctx, nomadTimeout)
	defer cancel()
	stubs, err := s.Nomad.Jobs(ctx)
	if err != nil {
		s.log.Debug("states of jobs not read", "error", err)
		return nil
	}
	out := make(map[watch.JobKey]string, len(stubs))
	for _, stub := range stubs {
		out[watch.JobKey{Namespace: stub.Namespace, ID: stub.ID}] = stub.Status
	}
	return out
}

// queueLimit is how much of the queue is shown and counted.
const queueLimit = 10000

// positions is the place in the queue of each waiting job, from 1.
func (s *server) positions(ctx context.Context) (map[watch.JobKey]int, error) {
	waiting, err := s.Store.WaitingJobs(ctx, queueLimit)
	if err != nil {
		return nil, err
	}
	out := make(map[watch.JobKey]int, len(waiting))
	for i, job := range waiting {
		out[watch.JobKey{Namespace: job.Namespace, ID: job.ID}] = i + 1
	}
	return out, nil
}

func (s *server) jobOf(job store.Job, positions map[watch.JobKey]int) api.Job {
	key := watch.JobKey{Namespace: job.Namespace, ID: job.ID}
	out := api.Job{
		ID: job.ID, Namespace: job.Namespace, Tenant: job.Tenant, User: job.User, State: api.JobState(job.State),
		ReasonCode: ref(job.ReasonCode), Reason: ref(job.Reason), Priority: job.Priority, EvalID: ref(job.EvalID),
		CreatedAt: job.CreatedAt, UpdatedAt: job.UpdatedAt, QueuePosition: ref(positions[key]), Placements: s.placements(key),
	}
	if job.State == store.JobWaiting {
		out.QueuedAt = &job.QueuedAt
	}
	return out
}

// placements is where a job's live allocations hold accelerators.
func (s *server) placements(key watch.JobKey) []api.Placement {
	out := []api.Placement{}
	for _, a := range s.World.LiveAllocs(key) {
		for _, d := range a.Devices {
			place := s.placement(a.NodeID, a.Group, d.Task, d.Group, len(d.IDs))
			place.AllocID, place.AllocStatus = ref(a.ID), ref(a.Client)
			if cards := s.World.CardsOf(a.NodeID, d.Group, d.IDs); len(cards) > 0 {
				place.CardUUIDs = &cards
			}
			out = append(out, place)
		}
	}
	slices.SortFunc(out, func(a, b api.Placement) int {
		return cmp.Or(cmp.Compare(a.TaskGroup, b.TaskGroup), cmp.Compare(val(a.AllocID), val(b.AllocID)), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Group, b.Group))
	})
	return out
}

func (s *server) placement(nodeID, group, task, device string, units int) api.Placement {
	out := api.Placement{NodeID: nodeID, NodeName: s.World.NodeName(nodeID), TaskGroup: group, Task: task, Group: device, Units: units}
	if pool, ok := s.World.Pool(nodeID, device); ok {
		out.Vendor, out.Model = ref(string(pool.Vendor)), ref(pool.Model)
		out.MemoryMiB = ref(int64(units) * int64(pool.UnitMiB))
	}
	return out
}

// GetJob shows one job.
func (s *server) GetJob(ctx context.Context, r api.GetJobRequestObject) (api.GetJobResponseObject, error) {
	job, err := s.findJob(ctx, r.Params.Namespace, r.ID)
	if err != nil {
		return nil, err
	}
	out, err := s.fullJob(ctx, job)
	return api.GetJob200JSONResponse(out), err
}

func (s *server) fullJob(ctx context.Context, job store.Job) (api.Job, error) {
	positions := map[watch.JobKey]int{}
	if job.State == store.JobWaiting {
		var err error
		if positions, err = s.positions(ctx); err != nil {
			return api.Job{}, err
		}
	}
	out := s.jobOf(job, positions)
	ctx, cancel := context.WithTimeout(ctx, nomadTimeout)
	defer cancel()
	tree, err := s.Nomad.Job(ctx, job.Namespace, job.ID)
	if err != nil && !nomadapi.IsNotFound(err) {
		s.log.Debug("state of job not read", "job_id", job.ID, "error", err)
	}
	if status, ok := tree["Status"].(string); ok {
		out.NomadStatus = ref(status)
	}
	return out, nil
}

// StopJob stops a job wherever it is.
func (s *server) StopJob(ctx context.Context, r api.StopJobRequestObject) (api.StopJobResponseObject, error) {
	if _, err := s.findJob(ctx, r.Params.Namespace, r.ID); err != nil {
		return nil, err
	}
	key := watch.JobKey{Namespace: cmp.Or(val(r.Params.Namespace), "default"), ID: r.ID}
	job, _, err := s.Submit.Stop(ctx, whoOf(ctx).Caller(), key, val(r.Params.Purge))
	if err != nil {
		return nil, err
	}
	return api.StopJob200JSONResponse(s.jobOf(job, nil)), nil
}

// ListQueue lists what waits, in the order in which it is tried. A tenant sees its own jobs, with their true places.
func (s *server) ListQueue(ctx context.Context, _ api.ListQueueRequestObject) (api.ListQueueResponseObject, error) {
	waiting, err := s.Store.WaitingJobs(ctx, queueLimit)
	if err != nil {
		return nil, err
	}
	tenant := whoOf(ctx).Tenant
	out := api.ListQueue200JSONResponse{Items: []api.QueueItem{}}
	for i, job := range waiting {
		if tenant != "" && tenant != job.Tenant {
			continue
		}
		out.Items = append(out.Items, api.QueueItem{
			Position: i + 1, JobID: job.ID, Namespace: job.Namespace, Tenant: job.Tenant, User: ref(job.User),
			Priority: job.Priority, QueuedAt: job.QueuedAt, ReasonCode: ref(job.ReasonCode), Reason: ref(job.Reason),
		})
	}
	return out, nil
}

// ListReservations lists the ledger.
func (s *server) ListReservations(ctx context.Context, r api.ListReservationsRequestObject) (api.ListReservationsResponseObject, error) {
	list, next, err := s.Store.Reservations(ctx, whoOf(ctx).Tenant, pageOf(r.Params.Limit, r.Params.Cursor))
	if err != nil {
		return nil, err
	}
	out := api.ListReservations200JSONResponse{Items: []api.Reservation{}, NextCursor: ref(next)}
	for _, res := range list {
		item := api.Reservation{
			ID: res.ID, Tenant: res.Tenant, Namespace: res.Namespace, JobID: res.JobID, State: api.ReservationState(res.State),
			CreatedAt: res.CreatedAt, ExpiresAt: res.ExpiresAt, Claims: []api.Claim{},
		}
		for _, c := range res.Claims {
			item.Claims = append(item.Claims, api.Claim{
				NodeID: c.NodeID, Group: c.Group, Units: c.Units, TaskGroup: c.TaskGroup, Task: c.Task, AllocID: ref(c.AllocID),
			})
		}
		out.Items = append(out.Items, item)
	}
	return out, nil
}
