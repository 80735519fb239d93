"""What a busy machine holds up once, a fault holds up each time."""


def best_of(measure, limit, tries=3):
    """Measure until it comes out below ``limit``, so many times at most; return the least that was measured."""
    least = measure()
    for _ in range(tries - 1):
        if least < limit:
            break
        least = min(least, measure())
    return least
