//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// parts are the variables that name something that only one task may have, where their value looks like one.
var parts = map[string]func(value string) bool{
	"CUDA_VISIBLE_DEVICES":   func(v string) bool { return strings.HasPrefix(v, "MIG-") },
	"ASCEND_VISIBLE_DEVICES": func(string) bool { return os.Getenv("ASCEND_RUNTIME_OPTIONS") == "VIRTUAL" },
	"MTHREADS_EXAMPLE":       func(string) bool { return true },
}

// held keeps the locks until the process ends, however it ends.
var held []*os.File

// claim holds locks on all that the task was given. What another task has already, or memory of a card that all tasks on it
// together do not have, is written into the file violations. Sizes of cards are in the file totals, as JSON.
func claim(dir string) error {
	all, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err == nil {
		err = syscall.Flock(int(all.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return err
	}
	defer all.Close() //nolint:errcheck // nothing was written
	var problems []error
	for name, is := range parts {
		value := os.Getenv(name)
		if value == "" || !is(value) {
			continue
		}
		if free, err := hold(filepath.Join(dir, "part."+strings.ReplaceAll(value, "/", "_")), 0); err != nil || !free {
			problems = append(problems, errors.Join(fmt.Errorf("%s=%s is another task's", name, value), err))
		}
	}
	problems = append(problems, claimMemory(dir))
	err = errors.Join(problems...)
	if err == nil {
		return nil
	}
	f, writeErr := os.OpenFile(filepath.Join(dir, "violations"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if writeErr == nil {
		_, writeErr = fmt.Fprintf(f, "%s: %v\n", os.Getenv("NOMAD_ALLOC_ID"), err)
		writeErr = errors.Join(writeErr, f.Close())
	}
	return errors.Join(err, writeErr)
}

// hold locks a file and writes a number into it. free is false when another process has it.
func hold(path string, number int) (free bool, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return false, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return false, f.Close()
	}
	held = append(held, f)
	if err := f.Truncate(0); err != nil {
		return true, err
	}
	_, err = f.WriteAt([]byte(strconv.Itoa(number)), 0)
	return true, err
}

// claimMemory adds the task's memory to what others hold of each of its cards.
func claimMemory(dir string) error {
	cards, own := os.Getenv("HETEROFLOW_CARDS"), os.Getenv("HETEROFLOW_MEMORY_MIB")
	if cards == "" {
		return nil
	}
	mib, err := strconv.Atoi(own)
	if err != nil {
		return err
	}
	totals := map[string]int{}
	body, err := os.ReadFile(filepath.Join(dir, "totals"))
	if err == nil {
		err = json.Unmarshal(body, &totals)
	}
	if err != nil {
		return err
	}
	for card := range strings.SplitSeq(cards, ",") {
		others, err := heldOf(dir, card)
		if err != nil {
			return err
		}
		if others+mib > totals[card] {
			return fmt.Errorf("%d MiB of %s are given beside %d MiB, it has %d", mib, card, others, totals[card])
		}
		if free, err := hold(filepath.Join(dir, "memory."+card+"."+os.Getenv("NOMAD_ALLOC_ID")), mib); err != nil || !free {
			return errors.Join(fmt.Errorf("another process of the allocation holds memory of %s", card), err)
		}
	}
	return nil
}

// heldOf is what living tasks hold of a card.
func heldOf(dir, card string) (mib int, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "memory."+card+".*"))
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return 0, err
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil { // its owner lives
			body, readErr := os.ReadFile(path)
			n, numberErr := strconv.Atoi(string(body))
			if err = errors.Join(readErr, numberErr); err == nil {
				mib += n
			}
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return 0, err
		}
	}
	return mib, nil
}
