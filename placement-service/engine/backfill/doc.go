// Package backfill says when and where the job at the head of a queue will start, and what may run in front of it
// meanwhile without delaying it. Which job is at the head, clocks and the text of jobs do not belong here.
package backfill
