package client

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// maxEvents is how many events a task keeps, the newest.
const maxEvents = 10

// newEvent is a task event with the text that the CLI shows.
func newEvent(kind, display string) *api.TaskEvent {
	return &api.TaskEvent{Type: kind, Time: time.Now().UnixNano(), DisplayMessage: display, Details: map[string]string{}}
}

func eventTerminated(r *driverpb.ExitResult, text string) *api.TaskEvent {
	parts := []string{fmt.Sprintf("Exit Code: %d", r.GetExitCode())}
	if r.GetSignal() != 0 {
		parts = append(parts, fmt.Sprintf("Signal: %d", r.GetSignal()))
	}
	if text == "" && r.GetOomKilled() {
		text = "OOM Killed"
	}
	if text != "" {
		parts = append(parts, fmt.Sprintf("Exit Message: %q", text))
	}
	e := newEvent(api.TaskTerminated, strings.Join(parts, ", "))
	e.ExitCode, e.Signal, e.Message = int(r.GetExitCode()), int(r.GetSignal()), text
	e.Details["exit_code"] = strconv.Itoa(e.ExitCode)
	e.Details["signal"] = strconv.Itoa(e.Signal)
	e.Details["oom_killed"] = strconv.FormatBool(r.GetOomKilled())
	if text != "" {
		e.Details["exit_message"] = text
	}
	return e
}

func eventRestarting(reason string, delay time.Duration) *api.TaskEvent {
	text := fmt.Sprintf("Task restarting in %s", delay)
	if reason != "" && reason != "Restart within policy" {
		text = reason + " - " + text
	}
	e := newEvent(api.TaskRestarting, text)
	e.RestartReason, e.StartDelay = reason, int64(delay)
	e.Details["restart_reason"] = reason
	e.Details["start_delay"] = strconv.FormatInt(int64(delay), 10)
	return e
}

func eventNotRestarting(reason string) *api.TaskEvent {
	e := newEvent(api.TaskNotRestarting, reason)
	e.RestartReason, e.FailsTask = reason, true
	e.Details["restart_reason"] = reason
	e.Details["fails_task"] = "true"
	return e
}

func eventKilling(timeout time.Duration) *api.TaskEvent {
	e := newEvent(api.TaskKilling, fmt.Sprintf("Sent interrupt. Waiting %s before force killing", timeout))
	e.KillTimeout = timeout
	e.Details["kill_timeout"] = timeout.String()
	return e
}

func eventKilled(err error) *api.TaskEvent {
	e := newEvent(api.TaskKilled, "Task successfully killed")
	if err != nil {
		e.DisplayMessage, e.KillError = err.Error(), err.Error()
		e.Details["kill_error"] = err.Error()
	}
	return e
}

func eventDriverFailure(err error) *api.TaskEvent {
	e := newEvent(api.TaskDriverFailure, rpcText(err))
	e.DriverError = e.DisplayMessage
	e.Details["driver_error"] = e.DisplayMessage
	return e
}

func eventSetupFailure(err error) *api.TaskEvent {
	e := newEvent(api.TaskSetupFailure, err.Error())
	e.SetupError, e.FailsTask = err.Error(), true
	e.Details["setup_error"] = err.Error()
	e.Details["fails_task"] = "true"
	return e
}

// appendEvent keeps the newest events.
func appendEvent(s *api.TaskState, e *api.TaskEvent) {
	s.Events = append(s.Events, e)
	if n := len(s.Events) - maxEvents; n > 0 {
		s.Events = append([]*api.TaskEvent(nil), s.Events[n:]...)
	}
}
