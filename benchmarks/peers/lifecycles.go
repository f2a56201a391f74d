// This file is compiled into the load programs of the peers that have a server.
package main

import (
	"fmt"
	"sort"
	"strconv"
	"sync"
	"time"
)

const warmUp = 3 * time.Second

type figures struct {
	PerSecond float64 `json:"per_s"`
	Done      int     `json:"done"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
}

func parseLoad(clients, seconds string) (int, time.Duration, error) {
	number, err := strconv.Atoi(clients)
	if err != nil {
		return 0, 0, err
	}
	length, err := strconv.ParseFloat(seconds, 64)
	return number, time.Duration(length * float64(time.Second)), err
}

// lifecycles lets so many clients execute one after the other, and counts what ends after the warm-up.
func lifecycles(clients int, seconds time.Duration, execute func() error) (figures, error) {
	from := time.Now().Add(warmUp)
	until := from.Add(seconds)
	var group sync.WaitGroup
	var lock sync.Mutex
	var taken []float64
	var failure error
	for range clients {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(until) {
				began := time.Now()
				err := execute()
				ended := time.Now()
				lock.Lock()
				if err != nil {
					failure = err
				} else if ended.After(from) && ended.Before(until) {
					taken = append(taken, float64(ended.Sub(began).Microseconds())/1000)
				}
				lock.Unlock()
				if err != nil {
					return
				}
			}
		}()
	}
	group.Wait()
	if failure != nil {
		return figures{}, failure
	}
	if len(taken) == 0 {
		return figures{}, fmt.Errorf("nothing ended within %s", seconds)
	}
	sort.Float64s(taken)
	return figures{
		PerSecond: float64(len(taken)) / seconds.Seconds(),
		Done:      len(taken),
		P50:       taken[len(taken)/2],
		P99:       taken[len(taken)*99/100],
	}, nil
}
