// Package collective says what the members of a placed gang need to find each other: the variables and files of the
// training framework and of the brand's communication library. What is known only when the members run is left as a
// placeholder for the driver. Placing gangs, starting them and the variables that make cards visible do not belong here.
package collective
