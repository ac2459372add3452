package cambricon

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// profile is a size in which a card gives instances: percent of its compute and MiB.
type profile struct {
	ID  int
	Pct int
	MiB uint64
}

// instance is one share of a card.
type instance struct {
	Index   int // of the card
	Name    string
	Profile int
	Node    string // /dev/cambricon-caps/cap_dev0_mi1
}

// cndev calls the administrator's program, whose verbs are the calls of the maker's library one to one:
//
//	profiles INDEX                      prints a line "ID PERCENT MIB" for each          cndevGetSMluProfileInfo
//	create-profile INDEX PERCENT MIB                                                     cndevCreateSMluProfileInfo
//	destroy-profile INDEX ID                                                             cndevDestroySMluProfileInfo
//	instances                           prints a line "INDEX NAME PROFILE NODE" for each cndevGetAllSMluInstanceInfo
//	create-instance INDEX PROFILE NAME                                                   cndevCreateSMluInstanceByProfileId
//	destroy-instance INDEX NAME                                                          cndevDestroySMluInstanceByInstanceName
type cndev struct {
	tool share.Tool
	path string
}

func (c cndev) run(ctx context.Context, args ...string) (string, error) {
	return maker.Run(ctx, c.tool, c.path, args...)
}

func (c cndev) profiles(ctx context.Context, index int) ([]profile, error) {
	out, err := c.run(ctx, "profiles", strconv.Itoa(index))
	if err != nil {
		return nil, err
	}
	return parseProfiles(out)
}

func parseProfiles(out string) ([]profile, error) {
	rows, err := maker.Table(out, 3)
	if err != nil {
		return nil, err
	}
	var all []profile
	for _, row := range rows {
		id, err := strconv.ParseUint(row[0], 10, 16)
		pct, pctErr := strconv.ParseUint(row[1], 10, 16)
		mib, mibErr := strconv.ParseUint(row[2], 10, 32)
		if err := errors.Join(err, pctErr, mibErr); err != nil {
			return nil, fmt.Errorf("line %q: %w", strings.Join(row, " "), err)
		}
		all = append(all, profile{ID: int(id), Pct: int(pct), MiB: mib})
	}
	return all, nil
}

func (c cndev) instances(ctx context.Context) ([]instance, error) {
	out, err := c.run(ctx, "instances")
	if err != nil {
		return nil, err
	}
	return parseInstances(out)
}

func parseInstances(out string) ([]instance, error) {
	rows, err := maker.Table(out, 4)
	if err != nil {
		return nil, err
	}
	var all []instance
	for _, row := range rows {
		index, err := strconv.ParseUint(row[0], 10, 16)
		id, idErr := strconv.ParseUint(row[2], 10, 16)
		if err := errors.Join(err, idErr); err != nil {
			return nil, fmt.Errorf("line %q: %w", strings.Join(row, " "), err)
		}
		if !strings.HasPrefix(row[3], "/dev/") {
			return nil, fmt.Errorf("line %q: %s is no node of the machine", strings.Join(row, " "), row[3])
		}
		all = append(all, instance{Index: int(index), Name: row[1], Profile: int(id), Node: row[3]})
	}
	return all, nil
}

func (c cndev) createProfile(ctx context.Context, index, pct int, mib uint64) error {
	_, err := c.run(ctx, "create-profile", strconv.Itoa(index), strconv.Itoa(pct), strconv.FormatUint(mib, 10))
	return err
}

func (c cndev) destroyProfile(ctx context.Context, index, id int) error {
	_, err := c.run(ctx, "destroy-profile", strconv.Itoa(index), strconv.Itoa(id))
	return err
}

func (c cndev) createInstance(ctx context.Context, index, id int, name string) error {
	_, err := c.run(ctx, "create-instance", strconv.Itoa(index), strconv.Itoa(id), name)
	return err
}

func (c cndev) destroyInstance(ctx context.Context, index int, name string) error {
	_, err := c.run(ctx, "destroy-instance", strconv.Itoa(index), name)
	return err
}
