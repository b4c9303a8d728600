"""The length-control methods: each turns rollouts into shaped rewards and moves its own state. Pure, no trainer."""
