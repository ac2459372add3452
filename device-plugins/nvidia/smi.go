package nvidia

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

// queryTiers are the field lists asked for, best first. A driver refuses a whole query for one field it does not
// know; mig.mode.current came with driver 450, gpu_recovery_action with 565.
var queryTiers = []string{
	"index,uuid,name,pci.bus_id,memory.total,memory.used,driver_version,utilization.gpu,temperature.gpu,power.draw,power.limit,mig.mode.current,gpu_recovery_action," +
		"utilization.memory,temperature.memory,fan.speed,clocks.sm,clocks.mem,ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total," +
		"retired_pages.single_bit_ecc.count,retired_pages.double_bit.count,retired_pages.pending,remapped_rows.correctable,remapped_rows.uncorrectable," +
		"remapped_rows.pending,clocks_event_reasons.hw_thermal_slowdown,clocks_event_reasons.sw_thermal_slowdown,clocks_event_reasons.hw_power_brake_slowdown",
	"index,uuid,name,pci.bus_id,memory.total,memory.used,driver_version,utilization.gpu,temperature.gpu,power.draw,power.limit,mig.mode.current,gpu_recovery_action",
	"index,uuid,name,pci.bus_id,memory.total,memory.used,driver_version,utilization.gpu,temperature.gpu,power.draw,power.limit,mig.mode.current",
	"index,uuid,name,pci.bus_id,memory.total,memory.used,driver_version,utilization.gpu,temperature.gpu,power.draw,power.limit",
	"index,uuid,name,pci.bus_id,memory.total,driver_version",
}

// errNothingRead says that the tool ran and printed nothing that is known.
var errNothingRead = errors.New("nvidia-smi printed nothing that is known")

// smi reads cards by nvidia-smi. It is safe for concurrent use.
type smi struct {
	path string
	run  vendorcli.Runner
	tier atomic.Int32 // index of the first query that this driver accepted
	// nvlinks is set when cards were seen to be connected by NVLink: then their state is worth a call.
	nvlinks atomic.Bool
}

// call runs the tool and reads what it printed. The status of the tool is not looked at: it is not 0 when one of many
// cards has failed.
func (s *smi) call(ctx context.Context, args ...string) (r report, ok bool, out vendorcli.Output, err error) {
	out, err = s.run.Run(ctx, s.path, args...)
	if err != nil {
		return report{}, false, out, err
	}
	r, ok = parse(out.Stdout)
	if !ok {
		if more, read := parse(out.Stderr); read {
			r, ok = more, true
		}
	}
	r.apart()
	return r, ok, out, nil
}

// query asks for the table of cards, with the richest field list that the driver knows.
func (s *smi) query(ctx context.Context) (report, bool, error) {
	for tier := s.tier.Load(); int(tier) < len(queryTiers); tier++ {
		r, ok, out, err := s.call(ctx, "--query-gpu="+queryTiers[tier], "--format=csv")
		if errors.Is(err, vendorcli.ErrNotRecorded) {
			continue // a recording of a version that asked for other fields
		}
		if err != nil {
			return report{}, false, err
		}
		if ok {
			s.tier.Store(tier)
			return r, true, nil
		}
		if !strings.Contains(out.Stdout+out.Stderr, "not a valid field") {
			return report{}, false, nil
		}
	}
	return report{}, false, nil
}

// inventory reads the cards and their facts by as many forms of output as it takes: the query, the list (which alone
// names partitions), the table (which shows cards the query cannot name), and as a last resort the full query.
func (s *smi) inventory(ctx context.Context) (report, error) {
	r, ok, err := s.query(ctx)
	if err != nil {
		return report{}, err
	}
	steps := []struct {
		args   []string
		wanted func() bool
	}{
		{[]string{"-L"}, func() bool { return !r.complete() || r.mayHavePartitions() }},
		{nil, func() bool { return !r.complete() }},
		{[]string{"-q", "-x"}, func() bool { return len(r.gpus) == 0 && !r.noDevices || r.lacksPartitions() }},
		{[]string{"-q"}, func() bool { return len(r.gpus) == 0 && !r.noDevices || r.lacksPartitions() }},
	}
	for _, step := range steps {
		if r.noDriver {
			break
		}
		if !step.wanted() {
			continue
		}
		more, read, _, err := s.call(ctx, step.args...)
		if err != nil {
			if len(r.gpus) > 0 {
				return r, nil // what was read in time is worth having
			}
			return report{}, err
		}
		if read {
			r.merge(more)
			ok = true
		}
	}
	if !ok {
		return report{}, errNothingRead
	}
	if r.driver == "" && len(r.gpus) > 0 {
		if version, _, _, err := s.call(ctx, "--version"); err == nil { // the cards are worth having without it
			r.driver = version.driver
		}
	}
	return r, nil
}

// complete tells whether the facts of every card are there, so that no further form of output need be read.
func (r *report) complete() bool {
	for _, g := range r.gpus {
		if g.uuid == "" && g.repeated == "" || g.pci == "" || g.name == "" || g.nameCut || g.memory == nil {
			return false
		}
	}
	return len(r.gpus) > 0 && !r.lacksPartitions()
}

// mayHavePartitions tells whether a card is in MIG mode, or the reading does not say whether it is.
func (r *report) mayHavePartitions() bool {
	return slices.ContainsFunc(r.gpus, func(g gpu) bool { return g.migMode == nil || *g.migMode })
}

// lacksPartitions tells whether a card in MIG mode shows no partitions, or partitions without their size.
func (r *report) lacksPartitions() bool {
	for _, g := range r.gpus {
		if g.migMode != nil && *g.migMode && len(g.migs) == 0 && g.dead == "" {
			return true
		}
		for _, m := range g.migs {
			if m.memory == nil || m.profile == "" {
				return true
			}
		}
	}
	return false
}

// sample reads the live numbers, the processes, and the state of NVLinks. What the tool does not tell stays unknown.
func (s *smi) sample(ctx context.Context, partitions bool) (report, error) {
	r, err := s.numbers(ctx, partitions)
	if err != nil {
		return r, err
	}
	if !r.processesKnown {
		if list, err := s.readProcesses(ctx); err == nil {
			r.processes, r.processesKnown = list.processes, true
		}
	}
	if s.nvlinks.Load() {
		r.addNVLinks(s.readNVLinks(ctx))
	}
	return r, nil
}

// numbers reads the live numbers. The table is read too where there are partitions, since the query has no row for
// them, and where the query is not answered.
func (s *smi) numbers(ctx context.Context, partitions bool) (report, error) {
	r, ok, err := s.query(ctx)
	if err != nil || ok && !partitions && len(r.gpus) > 0 {
		return r, err
	}
	table, read, _, err := s.call(ctx)
	if err != nil || !ok && !read {
		return r, errors.Join(err, errNothingRead)
	}
	r.merge(table)
	return r, nil
}

// readProcesses lists the compute processes. It is an error when the tool's answer does not tell.
func (s *smi) readProcesses(ctx context.Context) (report, error) {
	r, _, _, err := s.call(ctx, "--query-compute-apps=gpu_uuid,pid", "--format=csv")
	if err != nil || r.processesKnown {
		return r, err
	}
	if r, _, _, err = s.call(ctx); err != nil || r.processesKnown {
		return r, err
	}
	return r, fmt.Errorf("list processes: %w", errNothingRead)
}
