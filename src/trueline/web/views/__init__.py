"""What each screen of the page shows, a file a screen: facts made of results, nothing is judged here."""
